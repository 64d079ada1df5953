"""From class names in folders or a table to class indices of the model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from senseapp.data.arrangement import Arrangement
from senseapp.data.class_map import ClassMapProposal, propose_class_map, resolve_class_map
from senseapp.data.contents import Entry
from senseapp.data.wording import printable


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelledEntries:
    """Pictures to choose from.

    Attributes:
        entries: in the order of their names.
        labels: class index of each, int64 (N,), or None without labels.
        class_names: name of each class index; empty where unknown.
        notes: sentences a person should read.
    """

    entries: tuple[Entry, ...]
    labels: torch.Tensor | None
    class_names: tuple[str, ...]
    notes: tuple[str, ...]


def label_entries(
    arrangement: Arrangement,
    *,
    class_names: Sequence[str],
    num_classes: int,
    confirmed: Sequence[tuple[str, int]] = (),
) -> LabelledEntries:
    """Give each picture the class index that its folder or line in the table means.

    Pictures in one single folder whose name means no class are a heap: they are measured without labels.

    Args:
        arrangement: the pictures and what they are called.
        class_names: of the model, by index; empty where unknown.
        num_classes: outputs of the model.
        confirmed: pairs (name, class index) that a person confirmed; pictures of other names are left out.

    Raises:
        InvalidDataset: a name means no class of the model.
    """
    if arrangement.layout == "unlabelled":
        return _without_labels(arrangement, arrangement.notes)
    names = arrangement.label_names
    if arrangement.layout == "class folders" and len(names) == 1 and not confirmed:
        proposal = propose_class_map(names, class_names, num_classes)
        if proposal.unmatched:
            reason = f"All pictures lie in one folder, {printable(names[0])}, which is no class of this model."
            return _without_labels(arrangement, (reason,))
    chosen = resolve_class_map(
        names,
        class_names,
        num_classes,
        confirmed,
        own_order=arrangement.layout == "image set",
        empty=set(names).difference(arrangement.labels),
    )
    return _with_labels(arrangement, chosen, class_names, num_classes)


def _without_labels(arrangement: Arrangement, notes: tuple[str, ...]) -> LabelledEntries:
    return LabelledEntries(
        entries=arrangement.entries,
        labels=None,
        class_names=(),
        notes=(*notes, "There are no labels: outputs are compared with the original model's."),
    )


def _with_labels(
    arrangement: Arrangement, chosen: ClassMapProposal, class_names: Sequence[str], num_classes: int
) -> LabelledEntries:
    indices = dict(chosen.pairs)
    pairs = zip(arrangement.entries, arrangement.labels, strict=True)
    kept = [(entry, indices[label]) for entry, label in pairs if label in indices]
    named = {index: name for name, index in chosen.pairs}
    return LabelledEntries(
        entries=tuple(entry for entry, _ in kept),
        labels=torch.tensor([index for _, index in kept], dtype=torch.int64),
        class_names=tuple(class_names) or tuple(named.get(index, str(index)) for index in range(num_classes)),
        notes=(*arrangement.notes, *chosen.notes),
    )
