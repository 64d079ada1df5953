"""What a compressed model answers differently: pictures with both answers, and which classes pay for it."""

from __future__ import annotations

from dataclasses import dataclass

from senseapp.core.codec import register
from senseapp.core.wording import plural


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangedPicture:
    """One picture that is answered differently.

    Attributes:
        png: the picture as the network sees it, small; empty where images are no pictures.
        label: of the picture, as text; empty without labels.
        before, after: what the uncompressed and the compressed model answer.
        sure_before, sure_after: the probability that each gives to its answer.
    """

    name: str
    png: bytes
    label: str
    before: str
    after: str
    sure_before: float
    sure_after: float


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


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangedAnswers:
    """What a compressed model answers differently.

    Attributes:
        subject: what was compressed, in a few words.
        num_changed, num_images: of the images, and how many there were.
        by_labels: whether drops are of right answers; else of answers that stay the same.
        drop: over all images.
        pictures: some that changed, those first that the uncompressed model was surest of.
        classes: those that lose most, the worst first.
        num_classes: with images, over all of which intervals are corrected.
    """

    subject: str
    num_changed: int
    num_images: int
    by_labels: bool
    drop: float
    pictures: tuple[ChangedPicture, ...] = ()
    classes: tuple[ClassDrop, ...] = ()
    num_classes: int = 0

    @property
    def sentence(self) -> str:
        """How many change, and which classes pay for it beyond the others."""
        worse = [each.name for each in self.classes if each.stands_out and each.drop > self.drop]
        pay = (
            f" {' and '.join(worse[:3])} {'loses' if len(worse) == 1 else 'lose'} more than the mean." if worse else ""
        )
        none = "" if worse or not self.classes else " No class loses more than the mean for sure."
        return f"{self.num_changed} of {plural(self.num_images, 'answer')} change.{pay or none}"


register(ChangedAnswers)
