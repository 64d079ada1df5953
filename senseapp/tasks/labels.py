"""Labels and annotations of pictures: as written, and in the classes of a model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from senseapp.tasks.annotations import PerImage

SET_ORDER, TABLE_ORDER = "in the set's own order", "by the order of the table"
"""Names of orders of labels that are not the alphabetical one."""
Layout = Literal["class folders", "table", "image set", "annotations", "unlabelled"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelTruth:
    """Labels that are ``true`` of a picture, and those that are unknown; all others are false."""

    true: tuple[str, ...]
    unknown: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenLabels:
    """Labels of pictures from folders, a table ``file,label`` or an image set, and the known names of the outputs.

    Attributes:
        labels: of each picture, as written; empty where there are none.
        several: of each picture, where several labels may be true of one; empty where each has one.
        names: all labels, sorted, also of folders without pictures; those of an image set and of columns in their own
            order.
        num_outputs: numbers that the model gives for each image.
        output_names: of these; empty where unknown.
    """

    layout: Layout
    labels: Sequence[str]
    names: Sequence[str]
    num_outputs: int
    output_names: Sequence[str] = ()
    several: Sequence[LabelTruth] = ()

    @property
    def sorting(self) -> dict[str, Any]:
        """How names are sorted where their order means the outputs, and which of them have no pictures."""
        return {"own_order": SET_ORDER * (self.layout == "image set"), "empty": set(self.names).difference(self.labels)}

    @property
    def truths(self) -> Sequence[LabelTruth]:
        """Return :attr:`several`, or for each picture its one label."""
        return self.several or [LabelTruth(true=(label,)) for label in self.labels]


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelMapProposal:
    """A guess which of the model's outputs each written label means, to be shown, edited and confirmed.

    Attributes:
        pairs: (label as written, index of the output), for those that were matched.
        unmatched: labels that mean none of the model's outputs.
        words: how they were matched, as people read it: ``by number``.
        num_orders: orders of the outputs that fit the labels, this one included; measuring decides between several.
        certain: whether names, numbers of annotations or a person leave no doubt; else labels are assumed to mean it.
    """

    pairs: tuple[tuple[str, int], ...]
    unmatched: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    words: str = ""
    num_orders: int = 1
    certain: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Targets:
    """Meaning of the labels or annotations of pictures, in the model's own classes.

    Attributes:
        values: of the pictures kept, images first; None where the labels say nothing, so that all are unlabelled.
        kept: positions of the pictures that have a label.
        names: of the model's outputs, as people read them; empty where unknown.
        notes: sentences on what was matched and what was left out.
        orders: where several orders of the outputs fit the labels, or readings of class numbers are not certain, all of
            them, first the one that ``values`` follow.
        written: of such annotations, what they are in the class numbers of their files.
        read_as: makes of these, or of some of them, values and names by one of ``orders``.
    """

    values: PerImage | None
    kept: Sequence[int] = ()
    names: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    orders: tuple[LabelMapProposal, ...] = ()
    written: PerImage = None
    read_as: Callable[[PerImage, LabelMapProposal], tuple[PerImage, tuple[str, ...]]] | None = None
