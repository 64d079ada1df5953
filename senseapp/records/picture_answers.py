"""What the original network and delivered files answer to one picture."""

from __future__ import annotations

from dataclasses import dataclass

from senseapp.core.codec import register

MOST_PICTURE_MEGABYTES = 64
"""Size of the file of a picture that is tried."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassShare:
    """The probability of one class, or of one label of several."""

    name: str
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PictureAnswer:
    """What one network answers.

    Attributes:
        text: the answer in a few letters.
        shares: the likeliest classes, the likeliest first; empty where outputs are no probabilities.
    """

    text: str
    shares: tuple[ClassShare, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PictureAnswers:
    """What all networks answer to one picture.

    Attributes:
        png: the picture as the networks see it, at the size of a thumbnail.
        input_size: width and height of the input, in pixels.
        original: the uncompressed network, in PyTorch.
        files: what each file answers in its runtime, by its name in the run's folder.
        notes: sentences on how the picture was read.
    """

    png: bytes
    input_size: tuple[int, int]
    original: PictureAnswer
    files: tuple[tuple[str, PictureAnswer], ...]
    notes: tuple[str, ...] = ()

    def of(self, file: str) -> PictureAnswer | None:
        """Return what the file of this name answers; None where it was not asked."""
        return dict(self.files).get(file)


register(PictureAnswers)
