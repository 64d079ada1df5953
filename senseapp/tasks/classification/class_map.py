"""Which class of the model a folder name (or a label in a table) means."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import Literal

from timm.data import ImageNetInfo, infer_imagenet_subset

from senseapp.core.errors import InvalidDataset
from senseapp.core.wording import listed, plural
from senseapp.tasks.base import LabelMapProposal

MatchedBy = Literal["indices", "class names", "ImageNet ids", "order", "own order", "nothing"]
_WORDNET_ID = re.compile(r"n\d{8}")


def propose_class_map(
    folder_names: Sequence[str], class_names: Sequence[str], num_classes: int, *, own_order: bool = False
) -> LabelMapProposal:
    """Guess the class index of each folder name, in the way that matches the most names.

    Tried in this order: indices (``0``, ``1``, …), the model's class names (case, punctuation and spaces do not
    count; ``tench, Tinca tinca`` is also found as ``tench``), WordNet ids of ImageNet (``n01440764``), and, if
    there are as many folders as classes, their order: with ``own_order`` that of an image set, else the alphabetical.
    """
    names = list(folder_names) if own_order else sorted(folder_names)
    ways: tuple[tuple[MatchedBy, Callable[[], dict[str, int]]], ...] = (
        ("indices", lambda: _by_index(names, num_classes)),
        ("class names", lambda: _by_class_name(names, class_names)),
        ("ImageNet ids", lambda: _by_wordnet_id(names, num_classes)),
    )
    found = [(how, match()) for how, match in ways]
    how, matched = max(found, key=lambda pair: len(pair[1]))  # the first of equals
    if len(matched) < len(names) == num_classes:
        how = "own order" if own_order else "order"
        matched = {name: index for index, name in enumerate(names)}
    return LabelMapProposal(
        pairs=tuple(matched.items()),
        how=how if matched else "nothing",
        unmatched=tuple(name for name in names if name not in matched),
        notes=_notes(how, matched),
    )


def _by_index(names: Sequence[str], num_classes: int) -> dict[str, int]:
    numbers = {name: int(name) for name in names if name.isascii() and name.isdigit() and len(name) < 10}
    if len(set(numbers.values())) < len(numbers):  # "1" and "01"
        return {}
    first = 1 if min(numbers.values(), default=0) >= 1 and num_classes in numbers.values() else 0
    return {name: number - first for name, number in numbers.items() if number - first < num_classes}


def _by_class_name(names: Sequence[str], class_names: Sequence[str]) -> dict[str, int]:
    known = _spellings(class_names)
    matched = {name: known[_normal(name)] for name in names if _normal(name) in known}
    return matched if len(set(matched.values())) == len(matched) else {}


def _spellings(class_names: Sequence[str]) -> dict[str, int]:
    """Return the class of each full name, and of each synonym that only one class has."""
    synonyms = [{_normal(part) for part in name.split(",")} for name in class_names]
    counts = Counter(part for parts in synonyms for part in parts)
    known = {part: index for index, parts in enumerate(synonyms) for part in parts if counts[part] == 1}
    full = Counter(_normal(name) for name in class_names)
    known.update((_normal(name), index) for index, name in enumerate(class_names) if full[_normal(name)] == 1)
    known.pop("", None)
    return known


def _normal(name: str) -> str:
    """Return a name without case, punctuation and spaces.

    >>> _normal("Golden_Retriever ") == _normal("golden retriever")
    True
    """
    return re.sub(r"[\W_]+", "", name.casefold())


def _by_wordnet_id(names: Sequence[str], num_classes: int) -> dict[str, int]:
    if not any(_WORDNET_ID.fullmatch(name) for name in names):
        return {}
    subset = infer_imagenet_subset({"num_classes": num_classes})
    if subset is None:
        return {}
    labels: list[str] = ImageNetInfo(subset).label_names()  # type: ignore[no-untyped-call]
    indices = {label: index for index, label in enumerate(labels)}
    return {name: indices[name] for name in names if name in indices}


def _notes(how: MatchedBy, matched: dict[str, int]) -> tuple[str, ...]:
    by_order = {
        "order": "Folders were matched to the model's classes by their alphabetical order",
        "own order": "The model's classes were taken to be those of the image set, in its order",
    }
    if how in by_order:
        return (f"{by_order[how]}, because their number is right. Check that accuracy is well above chance.",)
    if how == "indices" and any(int(name) == index + 1 for name, index in matched.items()):
        return ("Folders are numbered from 1, so folder 1 was taken as class 0. Check that accuracy is above chance.",)
    return ()


def resolve_class_map(
    label_names: Sequence[str],
    class_names: Sequence[str],
    num_classes: int,
    confirmed: Sequence[tuple[str, int]] = (),
    *,
    own_order: bool = False,
    empty: Collection[str] = (),
) -> LabelMapProposal:
    """Return the mapping to measure with: the one that a person confirmed, else a proposal that fits every name.

    Names in ``empty`` have no pictures and may mean nothing. Any other name without a class, or a confirmed class that
    does not exist, raises InvalidDataset.
    """
    if confirmed:
        return _confirmed(label_names, num_classes, dict(confirmed))
    proposal = propose_class_map(label_names, class_names, num_classes, own_order=own_order)
    unmatched = [name for name in proposal.unmatched if name not in empty]
    if unmatched:
        raise InvalidDataset(
            f"{len(unmatched)} of {plural(len(label_names), 'class', 'classes')} in the images match none "
            f"of the model's {num_classes:,}: {listed(unmatched)}. Expected class numbers, "
            f"{'names such as ' + listed(class_names[:2]) if class_names else 'class names'}, ImageNet ids, or exactly "
            f"{plural(num_classes, 'folder')}. Confirm which class each folder means, or measure without labels."
        )
    return proposal


def _confirmed(label_names: Sequence[str], num_classes: int, pairs: dict[str, int]) -> LabelMapProposal:
    wrong = [f"{name} → {index}" for name, index in pairs.items() if not 0 <= index < num_classes]
    if wrong:
        raise InvalidDataset(
            f"A class must be a number from 0 to {num_classes - 1}, got {listed(wrong)}. Correct the mapping."
        )
    kept = {name: pairs[name] for name in label_names if name in pairs}
    if not kept:
        raise InvalidDataset(
            f"The mapping names {listed(pairs)}, and the images have {listed(label_names)}: no name is in both. "
            "Write the names as the folders have them."
        )
    dropped = [name for name in label_names if name not in pairs]
    classes = plural(len(dropped), "class", "classes")
    notes = (f"{classes} without a place in the mapping left out: {listed(dropped)}.",) if dropped else ()
    return LabelMapProposal(pairs=tuple(kept.items()), how="class names", notes=notes)
