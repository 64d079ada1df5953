"""Answers to single images: of a compressed model where they change, of each delivered file, and to one picture."""

from __future__ import annotations

from dataclasses import dataclass

from senseapp.core.codec import register
from senseapp.core.errors import InvalidSpec
from senseapp.core.texts import first_names, plural


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangedPicture:
    """One picture that is answered differently.

    Attributes:
        png: the picture as the network sees it, small; empty where images are no pictures.
        label: of the picture, as text; empty without labels.
        before, after: what the uncompressed and the compressed model answer.
        sure_before, sure_after: the probability that each gives to its answer; 0 with a caption.
        caption: what changed; empty for both answers with their probabilities.
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
    """What one class loses, above zero for the worse.

    Attributes:
        name: of the class: of the label, or where there are none of the uncompressed model's answer.
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


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class ChangedAnswers:
    """Predictions that a compressed model changes.

    Attributes:
        subject: what was compressed, in a few words.
        num_changed, num_images: of the images, and how many there were.
        by_labels: whether drops are of right answers; else of answers that stay the same.
        drop: over all images.
        pictures: some that changed, those first that the uncompressed model was surest of.
        classes: those that lose most, the worst first.
        num_classes: with images, over all of which intervals are corrected.
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
        worse = [each.name for each in self.classes if each.stands_out and each.drop > self.drop]
        pay = f" {first_names(worse)} {'loses' if len(worse) == 1 else 'lose'} more than the others." if worse else ""
        is_alike = self.num_changed and len(self.classes) > 1 and not worse
        none = " No class is sure to lose more than the others." if is_alike else ""
        said = self.said or f"{self.num_changed} of {plural(self.num_images, 'answer')} change."
        return f"{said}{pay or none}"


UNKNOWN = -1  # label of an image without one


@register
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
        lists = self.original, self.file, self.sure_original, self.sure_file, self.labels or self.images
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
            name: LabelledAnswer(
                text=self.texts[answer], sure=share, label=None if label == UNKNOWN else self.texts[label]
            )
            for name, answer, share, label in zip(self.images, answers, sure, labels, strict=True)
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelledAnswer:
    """One answer with its probability, and the label of the image; None where that is unknown."""

    text: str
    sure: float
    label: str | None


AnswerSide = dict[str, LabelledAnswer]
"""Answers of one network by the names of images."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DifferentAnswer:
    """One image that two networks answer differently."""

    image: str
    label: str | None
    first: LabelledAnswer
    second: LabelledAnswer


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
        only_first=sum(each.first.text == each.label for each in found) if judged else None,
        only_second=sum(each.second.text == each.label for each in found) if judged else None,
    )


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
        drawn: the picture with the answer drawn in it, as a PNG file, where that is possible.
    """

    text: str
    shares: tuple[ClassShare, ...]
    drawn: bytes = b""


@register
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
        """Return the answer of the file with this name; None if it has none."""
        return dict(self.files).get(file)
