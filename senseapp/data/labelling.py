"""From labels in folders or a table to what they mean to the task of the model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from senseapp.data.arrangement import Arrangement
from senseapp.data.contents import Entry
from senseapp.tasks import Task, WrittenLabels


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelledEntries:
    """Pictures to choose from.

    Attributes:
        entries: in the order of their names.
        labels: what each label means to the task, pictures first, or None without labels.
        class_names: names of the model's outputs; empty where unknown.
        notes: sentences a person should read.
    """

    entries: tuple[Entry, ...]
    labels: torch.Tensor | None
    class_names: tuple[str, ...]
    notes: tuple[str, ...]


def written_labels(arrangement: Arrangement, class_names: Sequence[str], num_classes: int) -> WrittenLabels:
    """Return what the places of pictures say, and what is known of the model's outputs, as a task reads it."""
    return WrittenLabels(
        layout=arrangement.layout,
        labels=arrangement.labels,
        names=arrangement.label_names,
        num_outputs=num_classes,
        output_names=class_names,
    )


def label_entries(
    arrangement: Arrangement,
    task: Task,
    *,
    class_names: Sequence[str],
    num_classes: int,
    confirmed: Sequence[tuple[str, int]] = (),
) -> LabelledEntries:
    """Give each picture what its folder or line in the table means; pictures whose label means nothing are left out.

    Args:
        arrangement: the pictures and what they are called.
        task: of the model.
        class_names: of the model's outputs, by index; empty where unknown.
        num_classes: outputs of the model.
        confirmed: pairs (label, index of the output) that a person confirmed; pictures of other labels are left out.

    Raises:
        InvalidDataset: a label means nothing to the model.
    """
    if arrangement.layout == "unlabelled":
        return _without_labels(arrangement, arrangement.notes)
    found = task.targets(written_labels(arrangement, class_names, num_classes), confirmed)
    if found.values is None:
        return _without_labels(arrangement, found.notes)
    return LabelledEntries(
        entries=tuple(arrangement.entries[place] for place in found.kept),
        labels=found.values,
        class_names=found.names,
        notes=(*arrangement.notes, *found.notes),
    )


def _without_labels(arrangement: Arrangement, notes: tuple[str, ...]) -> LabelledEntries:
    return LabelledEntries(
        entries=arrangement.entries,
        labels=None,
        class_names=(),
        notes=(*notes, "There are no labels: outputs are compared with the original model's."),
    )
