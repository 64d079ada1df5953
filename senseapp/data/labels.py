"""From labels in folders or a table to what they mean to the task of the model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from senseapp.data.arrangement import Arrangement
from senseapp.data.contents import Entry
from senseapp.tasks import Targets, Task, WrittenLabels

_UNLABELLED = "There are no labels: outputs are compared with the original model's."


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
) -> tuple[tuple[Entry, ...], Targets]:
    """Return the pictures in the order of their names, and what their folders or lines in the table mean.

    Args:
        arrangement: the pictures and what they are called.
        task: of the model.
        class_names: of the model's outputs, by index; empty where unknown.
        num_classes: outputs of the model.
        confirmed: pairs (label, index of the output) that a person confirmed; pictures of other labels are left out.

    Raises:
        InvalidDataset: a label means nothing to the model.
    """
    notes = arrangement.notes
    if arrangement.layout != "unlabelled":
        found = task.targets(written_labels(arrangement, class_names, num_classes), confirmed)
        if found.values is not None:
            kept = tuple(arrangement.entries[place] for place in found.kept)
            return kept, replace(found, notes=(*notes, *found.notes))
        notes = found.notes
    return arrangement.entries, Targets(values=None, notes=(*notes, _UNLABELLED))
