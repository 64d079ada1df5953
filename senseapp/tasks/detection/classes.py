"""Match of annotated classes with a detector's: by name, or by number if one side has no names."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from senseapp.core.texts import first_names, plural, printable
from senseapp.tasks.annotations import PerImage
from senseapp.tasks.labels import FittedAnnotations

_SEPARATORS = re.compile(r"[\s_-]+")


def fit_classes(
    targets: PerImage, names: Sequence[str], output_names: Sequence[str], num_outputs: int
) -> FittedAnnotations:
    """Return annotations with the model's class numbers; objects of other classes are left out, and said.

    Args:
        targets: of each image ``boxes``, ``labels``, ``crowd``, ``names`` and ``left_out``, as :class:`BoxReader`
            places them.
        names: of the numbers in ``labels``; empty where the file has none or writes names itself.
        output_names: of the model's classes; empty where unknown.
        num_outputs: of the model, a background included.
    """
    written = sorted({name for each in targets for name in each["names"] if name})
    names = tuple(names) or tuple(written)
    meaning, notes = _meaning(names, output_names, num_outputs, targets)
    by_name = {name: number for number, name in enumerate(names)} if written else {}
    fitted, lost = [], 0
    for each in targets:
        labels = torch.tensor([by_name[name] for name in each["names"]]) if written else each["labels"]
        found = torch.tensor([meaning.get(int(label), -1) for label in labels], dtype=torch.int64)
        kept = found >= 0
        lost += int((~kept).sum())
        fitted.append({"boxes": each["boxes"][kept], "labels": found[kept], "crowd": each["crowd"][kept]})
    unseen = sum(each.get("left_out", 0) for each in targets)
    if unseen:
        left = f"{plural(unseen, 'box', 'boxes')} left out: no area, or less than a pixel of the network's input."
        notes = (*notes, left)
    if lost:
        notes = (*notes, f"{plural(lost, 'object')} of classes that the model does not know left out.")
    known = {number: names[label] for label, number in meaning.items() if label < len(names) and names[label]}
    shown = tuple(known.get(number, "") or f"class {number}" for number in range(num_outputs)) if known else ()
    return FittedAnnotations(values=tuple(fitted), names=tuple(output_names) or shown, notes=notes)


def _meaning(
    names: Sequence[str], output_names: Sequence[str], num_outputs: int, targets: PerImage
) -> tuple[Mapping[int, int], tuple[str, ...]]:
    """Return the model's class of each number in the annotations, and sentences on how it was found."""
    spelled = {_spelling(name): number for number, name in enumerate(output_names)}
    named = {number: name for number, name in enumerate(names) if name}
    if named and spelled:
        meaning = {number: spelled[_spelling(name)] for number, name in named.items() if _spelling(name) in spelled}
        if meaning:
            missing = [printable(name) for number, name in named.items() if number not in meaning]
            said = f"The model has no class {first_names(missing)}."
            return meaning, (said,) if missing else ()
    used = sorted(named) or sorted({int(label) for each in targets for label in each["labels"]})
    if used and used[-1] >= num_outputs and len(used) in (num_outputs, num_outputs - 1):
        first = num_outputs - len(used)
        behind = ", behind the background" if first else ""
        note = f"{_strangers(named, spelled)}Classes are matched by their order: the file and the model have as many"
        return {number: first + place for place, number in enumerate(used)}, (f"{note}{behind}.",)
    shift = 1 if used and used[0] == 0 and used[-1] + 1 < num_outputs else 0
    how = "one above that in the file, as the model's first is the background" if shift else "that in the file"
    note = f"{_strangers(named, spelled)}Classes are matched by number: the model's is {how}."
    return {number: number + shift for number in used if number + shift < num_outputs}, (note,)


def _strangers(named: Mapping[int, str], spelled: Mapping[str, int]) -> str:
    return "None of the names in the file is one of the model's classes. " if named and spelled else ""


def _spelling(name: Any) -> str:
    return _SEPARATORS.sub("", str(name)).casefold()
