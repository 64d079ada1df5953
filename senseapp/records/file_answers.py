"""What a delivered file answers to each image that it was measured on, and where two files differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from senseapp.core.codec import register
from senseapp.core.errors import InvalidSpec

UNKNOWN = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class FileAnswers:
    """Answers of one file and of the original network, image by image.

    Answers and labels are places in :attr:`texts`, so that each name is written once; equal texts are equal answers.

    Attributes:
        images: names of the images.
        texts: the different answers and labels.
        labels: of the images, :data:`UNKNOWN` for those without one; empty without labels.
        original, file: what the two networks answer.
        sure_original, sure_file: the probability of the answer, rounded to three digits.
    """

    images: tuple[str, ...]
    texts: tuple[str, ...]
    labels: tuple[int, ...]
    original: tuple[int, ...]
    file: tuple[int, ...]
    sure_original: tuple[float, ...]
    sure_file: tuple[float, ...]

    def __post_init__(self) -> None:
        lists = (self.original, self.file, self.sure_original, self.sure_file, *([self.labels] if self.labels else ()))
        if any(len(each) != len(self.images) for each in lists):
            raise InvalidSpec("Each image has one answer of each network.")
        places = (*self.labels, *self.original, *self.file)
        if any(not UNKNOWN <= place < len(self.texts) for place in places):
            raise InvalidSpec("An answer is not among the texts.")

    def side(self, *, original: bool) -> AnswerSide:
        """Return the answers of one of the two networks by the name of the image."""
        answers, sure = (self.original, self.sure_original) if original else (self.file, self.sure_file)
        labels = self.labels or (UNKNOWN,) * len(self.images)
        return {
            name: GivenAnswer(
                text=self.texts[answer],
                sure=share,
                label=None if label == UNKNOWN else self.texts[label],
            )
            for name, answer, share, label in zip(self.images, answers, sure, labels, strict=True)
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenAnswer:
    """One answer with its probability, and the label of the image; None where that is unknown."""

    text: str
    sure: float
    label: str | None


AnswerSide = dict[str, GivenAnswer]
"""Answers of one network by the names of images."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DifferentAnswer:
    """One image that two networks answer differently."""

    image: str
    label: str | None
    first: GivenAnswer
    second: GivenAnswer


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerDifferences:
    """Where two networks differ.

    Attributes:
        num_images: that both answered.
        different: the images in question, those first that the networks are surest of.
        only_first, only_second: how many of these only one of them has right; None where labels are missing.
    """

    num_images: int
    different: tuple[DifferentAnswer, ...]
    only_first: int | None
    only_second: int | None


def differences(first: AnswerSide, second: AnswerSide) -> AnswerDifferences:
    """Compare the answers to the images that both sides have."""
    shared = [name for name in first if name in second]
    found = [
        DifferentAnswer(image=name, label=first[name].label, first=first[name], second=second[name])
        for name in shared
        if first[name].text != second[name].text
    ]
    judged = bool(shared) and all(first[name].label is not None for name in shared)
    return AnswerDifferences(
        num_images=len(shared),
        different=tuple(sorted(found, key=lambda each: -(each.first.sure + each.second.sure))),
        only_first=_right(found, [each.first for each in found]) if judged else None,
        only_second=_right(found, [each.second for each in found]) if judged else None,
    )


def _right(images: Sequence[DifferentAnswer], answers: Sequence[GivenAnswer]) -> int:
    return sum(answer.text == image.label for image, answer in zip(images, answers, strict=True))


register(FileAnswers)
