"""Match of folder names, or labels in a table, with classes of the model."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

from timm.data import ImageNetInfo, infer_imagenet_subset

from senseapp.core.errors import InvalidDataset
from senseapp.core.texts import listed, plural
from senseapp.tasks.class_numbers import given_outputs, spelling
from senseapp.tasks.labels import LabelMapProposal

OWN_ORDER = "in the set's own order"
_BY_NUMBER, _BY_NAME, _BY_ID, _ORDER = (
    "by number",
    "by the model's class names",
    "by ImageNet id",
    "in alphabetical order",
)
_WORDNET_ID = re.compile(r"n\d{8}")
_DIGITS = re.compile(r"(\d+)")


def propose_class_map(
    folder_names: Sequence[str],
    class_names: Sequence[str],
    num_classes: int,
    *,
    own_order: bool = False,
    empty: Collection[str] = (),
) -> LabelMapProposal:
    """Guess the class index of each folder name, in the way that matches the most names.

    Tried in this order: indices (``0``, ``1``, …), the model's class names (case, punctuation and spaces do not
    count; ``tench, Tinca tinca`` is also found as ``tench``), WordNet ids of ImageNet (``n01440764``), and, if
    there are as many folders as classes, their order: with ``own_order`` that of an image set, else the alphabetical.
    Folders in ``empty`` have no pictures: without them the number of folders may be right.
    """
    names = list(folder_names) if own_order else sorted(folder_names)
    ways = {
        _BY_NUMBER: _by_index(names, num_classes),
        _BY_NAME: _by_class_name(names, class_names),
        _BY_ID: _by_wordnet_id(names, num_classes),
    }
    words, matched = max(ways.items(), key=lambda pair: len(pair[1]))  # the first of equals
    ordered = _as_many_as_classes(names, num_classes, empty)
    if ordered and any(name not in matched for name in ordered):
        words, matched = OWN_ORDER if own_order else _ORDER, _in_order(ordered)
    return _proposal(words if matched else "", matched, names)


def _as_many_as_classes(names: Sequence[str], num_classes: int, empty: Collection[str]) -> list[str]:
    """Return the names, or those with pictures, if they are as many as the classes; else none."""
    used = [name for name in names if name not in empty]
    return next((list(each) for each in (names, used) if len(each) == num_classes), [])


def _in_order(names: Sequence[str]) -> dict[str, int]:
    return {name: index for index, name in enumerate(names)}


def _proposal(words: str, matched: Mapping[str, int], names: Sequence[str]) -> LabelMapProposal:
    notes = {
        _ORDER: "Folders were matched to the model's classes by their alphabetical order, because their number is "
        "right. Check that accuracy is well above chance.",
        OWN_ORDER: "The model's classes were taken to be those of the image set, in its order, because their number is "
        "right. Check that accuracy is well above chance.",
    }
    if words == _BY_NUMBER and any(int(name) == index + 1 for name, index in matched.items()):
        words = f"{_BY_NUMBER} from 1"
        notes[words] = (
            "Folders are numbered from 1, so folder 1 was taken as class 0. Check that accuracy is above chance."
        )
    return LabelMapProposal(
        pairs=tuple(matched.items()),
        unmatched=tuple(name for name in names if name not in matched),
        notes=(notes[words],) if words in notes else (),
        words=words,
    )


def class_orders(
    folder_names: Sequence[str],
    class_names: Sequence[str],
    num_classes: int,
    *,
    own_order: bool = False,
    empty: Collection[str] = (),
) -> tuple[LabelMapProposal, ...]:
    """Return all known ways in which every folder with pictures means one class; the most likely comes first.

    Names of classes leave no choice. Numbers may count from 0 or 1, or be sorted as text, as torchvision's ImageFolder
    and scikit-learn do (0, 1, 10, 11, 2); other names may be sorted by capitals and small letters, without regard to
    them, or by the numbers in them; folders without pictures may have had some when the model was trained. The two
    classes of a binary model may be the other way round.
    """
    names = list(folder_names) if own_order else sorted(folder_names)
    used = [name for name in names if name not in empty]
    first = propose_class_map(folder_names, class_names, num_classes, own_order=own_order, empty=empty)
    found = [first]
    if first.words not in (_BY_NAME, _BY_ID) or any(name in first.unmatched for name in used):
        found += [
            replace(_proposal(_ORDER, pairs, names), words=words)
            for words, pairs in _other_orders(names, used, num_classes)
        ]
    orders: dict[tuple[int, ...], LabelMapProposal] = {}
    for each in found:
        indices = dict(each.pairs)
        places = tuple(indices.get(name, -1) for name in used)
        if all(0 <= place < num_classes for place in places) and len(set(places)) == len(used):
            orders.setdefault(places, each)
    return tuple(replace(each, num_orders=len(orders)) for each in orders.values())


def _other_orders(names: Sequence[str], used: Sequence[str], num_classes: int) -> Iterator[tuple[str, dict[str, int]]]:
    """Yield words and the class of each name, in every order that may have been meant."""
    if all(name.isascii() and name.isdigit() and len(name) < 10 for name in used):
        for first in (0, 1):
            from_one = " from 1" * first
            yield f"by number{from_one}", {name: int(name) - first for name in used}
            as_text = sorted(str(number) for number in range(first, num_classes + first))
            known = {text: index for index, text in enumerate(as_text)}
            yield f"by number{from_one} as text (1, 10, 2)", {name: known.get(str(int(name)), -1) for name in used}
    for some in (names, used):
        if len(some) == num_classes:
            yield _ORDER, _in_order(sorted(some))
            yield "in alphabetical order without capitals", _in_order(sorted(some, key=lambda name: name.casefold()))
            yield "in natural order (1, 2, 10)", _in_order(sorted(some, key=_natural))
    if num_classes == len(used) == 2:
        yield "in reverse order", _in_order(sorted(used, reverse=True))


def _natural(name: str) -> tuple[tuple[bool, int, str], ...]:
    """Return a key that sorts the numbers in names by their value."""
    return tuple((not part.isdigit(), int(part) if part.isdigit() else 0, part) for part in _DIGITS.split(name) if part)


def _by_index(names: Sequence[str], num_classes: int) -> dict[str, int]:
    numbers = {name: int(name) for name in names if name.isascii() and name.isdigit() and len(name) < 10}
    if len(set(numbers.values())) < len(numbers):  # "1" and "01"
        return {}
    first = 1 if min(numbers.values(), default=0) >= 1 and num_classes in numbers.values() else 0
    return {name: number - first for name, number in numbers.items() if number - first < num_classes}


def _by_class_name(names: Sequence[str], class_names: Sequence[str]) -> dict[str, int]:
    known = _spellings(class_names)
    matched = {name: known[spelling(name)] for name in names if spelling(name) in known}
    return matched if len(set(matched.values())) == len(matched) else {}


def _spellings(class_names: Sequence[str]) -> dict[str, int]:
    """Return the class of each full name, and of each synonym that only one class has."""
    synonyms = [{spelling(part) for part in name.split(",")} for name in class_names]
    counts = Counter(part for parts in synonyms for part in parts)
    known = {part: index for index, parts in enumerate(synonyms) for part in parts if counts[part] == 1}
    full = Counter(spelling(name) for name in class_names)
    known.update((spelling(name), index) for index, name in enumerate(class_names) if full[spelling(name)] == 1)
    known.pop("", None)
    return known


def _by_wordnet_id(names: Sequence[str], num_classes: int) -> dict[str, int]:
    if not any(_WORDNET_ID.fullmatch(name) for name in names):
        return {}
    subset = infer_imagenet_subset({"num_classes": num_classes})
    if subset is None:
        return {}
    labels: list[str] = ImageNetInfo(subset).label_names()  # type: ignore[no-untyped-call]
    indices = {label: index for index, label in enumerate(labels)}
    return {name: indices[name] for name in names if name in indices}


def resolve_class_map(
    label_names: Sequence[str],
    class_names: Sequence[str],
    num_classes: int,
    confirmed: Sequence[tuple[str, int]] = (),
    *,
    own_order: bool = False,
    empty: Collection[str] = (),
) -> tuple[LabelMapProposal, ...]:
    """Return the mapping to measure with, and others that fit as well.

    It is the one that a person confirmed, else every order in which each name means a class, the most likely first.

    Names in ``empty`` have no pictures and may mean nothing. Any other name without a class, or a confirmed class that
    does not exist, raises InvalidDataset.
    """
    if confirmed:
        return (_confirmed(label_names, num_classes, confirmed),)
    orders = class_orders(label_names, class_names, num_classes, own_order=own_order, empty=empty)
    if orders:
        return orders
    proposal = propose_class_map(label_names, class_names, num_classes, own_order=own_order, empty=empty)
    unmatched = [name for name in proposal.unmatched if name not in empty]
    raise InvalidDataset(
        f"{len(unmatched)} of {plural(len(label_names), 'class', 'classes')} in the images match none "
        f"of the model's {num_classes:,}: {listed(unmatched)}. Expected class numbers, "
        f"{'names such as ' + listed(class_names[:2]) if class_names else 'class names'}, ImageNet ids, or exactly "
        f"{plural(num_classes, 'folder')}. Say which class each of them means (with --class-map FILE, or in the table "
        "of classes on the Analyze page), or measure without labels."
    )


def _confirmed(label_names: Sequence[str], num_classes: int, confirmed: Sequence[tuple[str, int]]) -> LabelMapProposal:
    kept = given_outputs(label_names, num_classes, confirmed)
    dropped = [name for name in label_names if name not in kept]
    classes = plural(len(dropped), "class", "classes")
    notes = (f"{classes} without a place in the mapping left out: {listed(dropped)}.",) if dropped else ()
    return LabelMapProposal(pairs=tuple(kept.items()), notes=notes)
