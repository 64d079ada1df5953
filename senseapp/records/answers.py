"""Answers to single images: of a compressed model where they change, of each delivered file, and to one picture."""

from collections.abc import Mapping
from dataclasses import dataclass

from senseapp.core.texts import first_names, plural


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangedPicture:
    """One picture that is answered differently.

    Attributes:
        png: the picture as the network sees it, small; empty where images are no pictures.
        label: as text; empty without labels.
        before, after: answers of the uncompressed and the compressed model.
        sure_before, sure_after: their probabilities; 0 with a ``caption`` of what changed, which else is empty.
        drawn: title and PNG file of the picture with each answer drawn in it, and its label, where that is possible.
    """

    name: str
    png: bytes
    label: str
    before: str
    after: str
    sure_before: float
    sure_after: float
    caption: str = ""
    drawn: tuple[tuple[str, bytes], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassDrop:
    """What one class, of the label or else of the uncompressed model's answer, loses.

    Attributes:
        drop: the share of its images that became wrong less that which became right; or that changed.
        low, high: ends of its interval; those of all classes hold together with 95 % confidence.
        stands_out: whether the interval excludes the mean drop of all images.
    """

    name: str
    num_images: int
    drop: float
    low: float
    high: float
    stands_out: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangedAnswers:
    """Predictions that a compressed model changes.

    Attributes:
        subject: what was compressed, in a few words.
        by_labels: whether drops are of right answers; else of answers that stay the same.
        drop: over all images.
        pictures: some that changed, those first that the uncompressed model was surest of.
        classes: those that lose most, the worst first, of ``num_classes`` with images.
        said: how much changes, in one sentence; empty for the number of images.
        measure: what drops of classes are of; empty for answers.
        legend: what the colours of drawn answers mean, as a PNG file.
    """

    subject: str
    num_changed: int
    num_images: int
    by_labels: bool
    drop: float
    pictures: tuple[ChangedPicture, ...] = ()
    classes: tuple[ClassDrop, ...] = ()
    num_classes: int = 0
    said: str = ""
    measure: str = ""
    legend: bytes = b""

    @property
    def sentence(self) -> str:
        """How many change, and which classes pay for it beyond the others."""
        worse = [
            f"Class {each.name}" if each.name.isdecimal() else each.name
            for each in self.classes
            if each.stands_out and each.drop > self.drop
        ]
        pay = f" {first_names(worse)} {'loses' if len(worse) == 1 else 'lose'} more than the others." if worse else ""
        if self.num_changed and len(self.classes) > 1 and not worse:
            pay = " No class is sure to lose more than the others."
        said = self.said or f"{self.num_changed} of {plural(self.num_images, 'answer')} change."
        return f"{said}{pay}"


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelledAnswer:
    """One answer with its probability, and the label of the image; None where that is unknown."""

    text: str
    sure: float
    label: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FileAnswers:
    """Answers of one file and of the original network, by the name of the image; equal texts are equal answers."""

    original: dict[str, LabelledAnswer]
    file: dict[str, LabelledAnswer]


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerDifferences:
    """Where two networks differ on the images that both answered.

    ``different`` holds both answers by the name of the image, those first that the networks are surest of; only one of
    them has ``only_first`` and ``only_second`` of these right, None where labels are missing.
    """

    num_images: int
    different: dict[str, tuple[LabelledAnswer, LabelledAnswer]]
    only_first: int | None
    only_second: int | None


def differences(first: Mapping[str, LabelledAnswer], second: Mapping[str, LabelledAnswer]) -> AnswerDifferences:
    """Compare the answers of two networks to the images that both have answered."""
    shared = {name: (answer, second[name]) for name, answer in first.items() if name in second}
    different = [(name, pair) for name, pair in shared.items() if pair[0].text != pair[1].text]
    different.sort(key=lambda item: -sum(each.sure for each in item[1]))
    judged = bool(shared) and all(one.label is not None for one, _ in shared.values())
    only_first, only_second = (
        sum(pair[side].text == pair[0].label for _, pair in different) if judged else None for side in (0, 1)
    )
    return AnswerDifferences(
        num_images=len(shared), different=dict(different), only_first=only_first, only_second=only_second
    )


MOST_PICTURE_MEGABYTES = 64
"""Size of the file of a picture that is tried."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PictureAnswer:
    """What one network answers, with the likeliest classes or labels, if any, and their probabilities.

    ``drawn`` is the picture with the answer drawn in it, as a PNG file, where that is possible.
    """

    text: str
    shares: tuple[tuple[str, float], ...]
    drawn: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class PictureAnswers:
    """What the uncompressed network and each file, by its name in the run's folder, answer to one picture.

    ``png`` is a thumbnail of it as the networks see it, ``input_size`` width and height of the input, in pixels.
    """

    png: bytes
    input_size: tuple[int, int]
    original: PictureAnswer
    files: dict[str, PictureAnswer]
    notes: tuple[str, ...] = ()
