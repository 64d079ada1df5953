"""Match of folder names, or labels in a table, with classes of the model."""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

from timm.data import ImageNetInfo, infer_imagenet_subset

from senseapp.core.errors import InvalidDataset
from senseapp.core.texts import listed, plural
from senseapp.tasks.class_numbers import ModelClasses, given_outputs, spelling
from senseapp.tasks.labels import SET_ORDER, TABLE_ORDER, LabelMapProposal

_BY_NUMBER, _BY_NAME, _BY_ID, _ORDER = (
    "by number",
    "by the model's class names",
    "by ImageNet id",
    "in alphabetical order",
)
_FROM_ONE = f"{_BY_NUMBER} from 1"
_FIRST = {_BY_NUMBER: 0, _FROM_ONE: 1}  # numbers of the first class
_NOTES = {
    _ORDER: "Labels were matched to the model's classes by their alphabetical order, because their number is "
    "right. Check that accuracy is well above chance.",
    TABLE_ORDER: "Labels were matched to the model's outputs by their order, because their number is right. Check it.",
    SET_ORDER: "The model's classes were taken to be those of the image set, in its order, because their number is "
    "right. Check that accuracy is well above chance.",
    _FROM_ONE: "Folders are numbered from 1, so folder 1 was taken as class 0. Check that accuracy is above chance.",
}
_WORDNET_ID = re.compile(r"n\d{8}")
_DIGITS = re.compile(r"(\d+)")


def class_orders(
    folder_names: Sequence[str],
    class_names: Sequence[str],
    num_classes: int,
    *,
    own_order: str = "",
    empty: Collection[str] = (),
) -> tuple[LabelMapProposal, ...]:
    """Return all known ways in which every folder with pictures means one class; the most likely comes first.

    That is the one that matches the most names: indices (``0``, ``1``, …), the model's class names (case, punctuation
    and spaces do not count; ``tench, Tinca tinca`` is also found as ``tench``), WordNet ids of ImageNet
    (``n01440764``), or, with as many folders as classes, their order: the one called ``own_order``, else the
    alphabetical. It is returned alone where no way matches every folder. Folders in ``empty`` have no pictures: without
    them the number of folders may be right.

    Names of classes leave no choice. Numbers may count from 0 or 1, or be sorted as text, as torchvision's ImageFolder
    and scikit-learn do (0, 1, 10, 11, 2); other names may be sorted by capitals and small letters, without regard to
    them, or by the numbers in them; folders without pictures may have had some when the model was trained. The two
    classes of a binary model may be the other way round.
    """
    names = list(folder_names) if own_order else sorted(folder_names)
    used = [name for name in names if name not in empty]
    model = ModelClasses(num_outputs=num_classes, names=class_names)
    ways = list(_ways(names, used, model, own_order or _ORDER))
    words, matched = max(ways, key=lambda way: len(way[1]))  # the first of equals
    sure = words in (_BY_NAME, _BY_ID) and {*used} <= matched.keys()
    first = _proposal(words if matched else "", matched, names, certain=sure)
    orders: dict[tuple[int, ...], LabelMapProposal] = {}
    for how, pairs in [(first.words, matched), *(() if sure else ways)]:
        places = tuple(pairs.get(name, -1) for name in used)
        if all(0 <= place < num_classes for place in places) and len(set(places)) == len(used):
            orders.setdefault(places, _proposal(how, pairs, names, certain=sure))
    return tuple(replace(each, num_orders=len(orders)) for each in orders.values()) or (first,)


def _proposal(words: str, matched: Mapping[str, int], names: Sequence[str], *, certain: bool) -> LabelMapProposal:
    note = _NOTES.get(words, _NOTES[_ORDER] if words.startswith("in ") else "")
    return LabelMapProposal(
        pairs=tuple(matched.items()),
        unmatched=tuple(name for name in names if name not in matched),
        notes=(note,) if note else (),
        words=words,
        certain=certain,
    )


def _ways(
    names: Sequence[str], used: Sequence[str], model: ModelClasses, order: str
) -> Iterator[tuple[str, dict[str, int]]]:
    """Yield words and the class of each name, in every way that may have been meant, the most likely first."""
    for words, first in _FIRST.items():
        numbers = _by_number(names, first, model.num_outputs)
        yield words, numbers
        as_text = _in_order(sorted(str(number + first) for number in range(model.num_outputs)))
        yield f"{words} as text (1, 10, 2)", {name: as_text[str(number + first)] for name, number in numbers.items()}
    known = model.spellings
    named = {name: known[spelling(name)] for name in names if spelling(name) in known}
    yield _BY_NAME, named if len(set(named.values())) == len(named) else {}
    yield _BY_ID, _by_wordnet_id(names, model.num_outputs)
    ordered = [some for some in (names, used) if len(some) == model.num_outputs]
    for some in ordered:
        yield order, _in_order(some)
        yield _ORDER, _in_order(sorted(some))
        yield "in alphabetical order without capitals", _in_order(sorted(some, key=lambda name: name.casefold()))
        yield "in natural order (1, 2, 10)", _in_order(sorted(some, key=_natural))
    if model.num_outputs == len(used) == 2:
        yield "in reverse order", _in_order(sorted(used, reverse=True))


def _in_order(names: Sequence[str]) -> dict[str, int]:
    return {name: index for index, name in enumerate(names)}


def _natural(name: str) -> tuple[tuple[bool, int, str], ...]:
    """Return a key that sorts the numbers in names by their value."""
    return tuple((not part.isdigit(), int(part) if part.isdigit() else 0, part) for part in _DIGITS.split(name) if part)


def _by_number(names: Sequence[str], first: int, num_classes: int) -> dict[str, int]:
    is_number = re.compile(r"[0-9]{1,9}").fullmatch
    numbers = {name: int(name) - first for name in names if is_number(name)}
    if len(set(numbers.values())) < len(numbers):  # "1" and "01"
        return {}
    return {name: place for name, place in numbers.items() if 0 <= place < num_classes}


def _by_wordnet_id(names: Sequence[str], num_classes: int) -> dict[str, int]:
    are_ids = any(_WORDNET_ID.fullmatch(name) for name in names)
    subset = infer_imagenet_subset({"num_classes": num_classes}) if are_ids else None
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
    own_order: str = "",
    empty: Collection[str] = (),
) -> tuple[LabelMapProposal, ...]:
    """Return the mapping to measure with, and others that fit as well.

    It is the one that a person confirmed, else every order in which each name means a class, the most likely first.

    Names in ``empty`` have no pictures and may mean nothing. Any other name without a class, or a confirmed class that
    does not exist, raises InvalidDataset.
    """
    if confirmed:
        kept = given_outputs(label_names, num_classes, confirmed)
        dropped = [name for name in label_names if name not in kept]
        left = f"{plural(len(dropped), 'class', 'classes')} without a place in the mapping left out: {listed(dropped)}."
        return (LabelMapProposal(pairs=tuple(kept.items()), notes=(left,) if dropped else (), certain=True),)
    orders = class_orders(label_names, class_names, num_classes, own_order=own_order, empty=empty)
    unmatched = [name for name in orders[0].unmatched if name not in empty]
    if not unmatched:
        return orders
    raise InvalidDataset(
        f"{len(unmatched)} of {plural(len(label_names), 'class', 'classes')} in the images match none "
        f"of the model's {num_classes:,}: {listed(unmatched)}. Expected class numbers, "
        f"{'names such as ' + listed(class_names[:2]) if class_names else 'class names'}, ImageNet ids, or exactly "
        f"{plural(num_classes, 'folder')}. Say which class each of them means (with --class-map FILE), or measure "
        "without labels."
    )
