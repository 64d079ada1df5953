"""Class numbers of annotations as outputs of a model: every reading that fits, the best evidence first."""

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import pairwise
from typing import Literal, TypeAlias

from senseapp.core.errors import InvalidDataset
from senseapp.core.texts import first_names, listed, printable
from senseapp.tasks.annotations import PerImage
from senseapp.tasks.labels import LabelMapProposal, Targets

OTHER_WAYS = (
    "Choose “Nowhere: measure without labels” under “Labels come from” (--labels none). The command line "
    "can say which output each class means (--class-map FILE, with lines such as 'cat,0')."
)
"""What to do where no reading of the classes fits."""
Background: TypeAlias = Literal["first", "last", "none", "unknown"]
"""Which output of a model means that there is no object."""
Renumber: TypeAlias = Callable[[PerImage, Mapping[int, int]], PerImage]
"""Returns annotations with other class numbers, without the classes that have none."""
_BACKGROUNDS = ("background", "bg", "noobject", "nothing", "unlabeled", "unlabelled")  # spellings
_PLACEHOLDER = re.compile(r"(class|label|cls|category|output)\d+")  # a spelling that says no more than the number
_MARKS = re.compile(r"[\W_]+")
_BY_NAME, _GIVEN, _AS_WRITTEN = "by name", "as the class map says", "as written"
_SHIFTS = {0: _AS_WRITTEN, 1: "one above those in the files", -1: "one below those in the files"}
_EXACT, _LISTED, _USED, _MISFIT = range(4)  # what a reading fits: as many classes, all listed, all used, or not these


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelClasses:
    """Outputs of a model: their number, their names where known, and which of them is the background."""

    num_outputs: int
    names: Sequence[str] = ()
    background: Background = "unknown"

    @property
    def classes(self) -> range:
        """The outputs that an object may be of; all of them where the background is unknown."""
        ends = [bool(self.names) and spelling(self.names[place]) in _BACKGROUNDS for place in (0, -1)]
        first, last = (self.background == "unknown" and is_background for is_background in ends)
        return range(first or self.background == "first", self.num_outputs - (last or self.background == "last"))

    @property
    def spellings(self) -> dict[str, int]:
        """The output of each full name, and of each synonym between commas, that only one output has."""
        synonyms = [{spelling(part) for part in name.split(",")} for name in self.names]
        found: dict[str, int] = {}
        for spellings in (synonyms, [{spelling(name)} for name in self.names]):
            counts = Counter(part for parts in spellings for part in parts)
            found |= {part: place for place, parts in enumerate(spellings) for part in parts if counts[part] == 1}
        found.pop("", None)
        return found


@dataclass(frozen=True, kw_only=True)
class WrittenClasses:
    """Classes of annotations, as their files write them.

    Attributes:
        used: class numbers of objects or pixels.
        names: of class numbers that files list, whether they are used or not.
        numbered: whether files write the numbers; else they count the names in alphabetical order.
        rest: number of pixels without an annotation: output 0, unless a class is.
        blank: numbers that may mean no class.
    """

    used: Collection[int]
    names: Mapping[int, str] = field(default_factory=dict)
    numbered: bool = True
    rest: int | None = None
    blank: Collection[int] = ()

    @cached_property
    def listed(self) -> list[int]:
        """All class numbers, used or not."""
        return sorted({*self.names, *self.used} - {self.rest})

    @cached_property
    def labels(self) -> dict[int, str]:
        """What people call classes: by a name, or by the number where a class has no name of its own."""
        counts = Counter(self.names.values())
        names = {number: name for number, name in self.names.items() if counts[name] == 1}
        return {number: names.get(number, str(number)) for number in sorted({*self.names, *self.used})}


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbering:
    """The output that each class number means, and ``how`` it was found, behind "Class numbers are read".

    Numbers in ``blank`` may mean no class; what is ``assumed`` is uncertain even where nothing else fits.
    """

    how: str
    meaning: Mapping[int, int]
    blank: Collection[int] = ()
    assumed: bool = False


def spelling(name: str) -> str:
    """Return a name without case, punctuation and spaces.

    >>> spelling("Golden_Retriever ") == spelling("golden retriever")
    True
    """
    return _MARKS.sub("", unicodedata.normalize("NFC", name).casefold())


def fit_numbers(
    values: PerImage,
    written: WrittenClasses,
    model: ModelClasses,
    renumber: Renumber,
    *,
    confirmed: Sequence[tuple[str, int]] = (),
    more: Sequence[Numbering] = (),
) -> Targets:
    """Return annotations, ``values``, in the model's class numbers, by the first of the readings that fit.

    ``confirmed`` are pairs (label, output) that a person gave, which win; ``more`` readings are known for such files.

    Raises InvalidDataset if no reading fits.
    """
    is_given = bool(confirmed and written.used)
    orders = (_given(written, model, confirmed),) if is_given else class_readings(written, model, more)
    if not orders and written.used:
        used = listed(written.labels[number] for number in sorted(written.used))
        names = f", {listed(model.names)}" if model.names else ""
        raise InvalidDataset(
            f"The annotations have the classes {used}, and the model has {model.num_outputs:,} outputs{names}: no "
            f"reading of the classes fits. {OTHER_WAYS}"
        )
    read_as = partial(_read_as, written=written, model=model, renumber=renumber)
    fitted, shown = read_as(values, orders[0] if orders else LabelMapProposal(pairs=()))
    notes = tuple(_notes(orders, written, model)) if orders else ()
    if not orders or orders[0].words in (_BY_NAME, _GIVEN):
        return Targets(values=fitted, names=shown, notes=notes)
    return Targets(values=fitted, names=shown, notes=notes, orders=orders, written=values, read_as=read_as)


def class_readings(
    written: WrittenClasses, model: ModelClasses, more: Sequence[Numbering] = ()
) -> tuple[LabelMapProposal, ...]:
    """Return each way in which the classes of annotations are outputs of the model, the best evidence first.

    Names of half of the classes used, or of all the model's, leave no doubt; else numbers may be meant as well. Of
    numbers those readings are returned that fit best: listed classes are all of the model's, else all listed classes
    fit, else all that are used.
    """
    by_name = _by_name(written, model)
    needed = {*written.used} - {*written.blank, written.rest}
    for each in by_name:
        if 2 * len(needed & each.meaning.keys()) >= len(needed) or {*model.classes} <= {*each.meaning.values()}:
            return (_proposal(each, written, certain=True),)
    ranked = [(_rank(each, written, model), each) for each in (*more, *_by_number(written, model))]
    best = min((rank for rank, _ in ranked), default=_MISFIT)
    found = [each for rank, each in ranked if rank == best < _MISFIT]
    distinct: dict[tuple[int, ...], Numbering] = {}
    for each in (*by_name, *found):
        distinct.setdefault(tuple(each.meaning.get(number, -1) for number in sorted(written.used)), each)
    certain = len(distinct) == 1 and not _are_strangers(written, model)
    certain &= not any(each.assumed for each in distinct.values())
    return tuple(_proposal(each, written, num_others=len(distinct) - 1, certain=certain) for each in distinct.values())


def given_outputs(labels: Collection[str], num_outputs: int, confirmed: Sequence[tuple[str, int]]) -> dict[str, int]:
    """Return the output of each label that a class map names; raises InvalidDataset where it names none of them."""
    wrong = [f"{label} → {output}" for label, output in confirmed if not 0 <= output < num_outputs]
    if wrong:
        raise InvalidDataset(
            f"A class must be a number from 0 to {num_outputs - 1}, got {listed(wrong)}. Correct the class map."
        )
    given = {unicodedata.normalize("NFC", label): output for label, output in confirmed}
    composed = {label: unicodedata.normalize("NFC", label) for label in labels}
    found = {label: given[same] for label, same in composed.items() if same in given}
    if not found:
        raise InvalidDataset(
            f"The class map names {listed(given)}, and the images have {listed(labels)}: no name is in both. Write the "
            "names as the folders or annotations have them."
        )
    return found


def _given(written: WrittenClasses, model: ModelClasses, confirmed: Sequence[tuple[str, int]]) -> LabelMapProposal:
    """Return what a person says of classes, by name or by number."""
    numbers = {str(number): number for number in written.labels} if written.numbered else {}
    numbers |= {label: number for number, label in written.labels.items()}
    given = given_outputs(numbers, model.num_outputs, confirmed)
    meaning = _with_rest({numbers[label]: output for label, output in given.items()}, written)
    return _proposal(Numbering(how=_GIVEN, meaning=meaning), written, certain=True)


def _by_name(written: WrittenClasses, model: ModelClasses) -> list[Numbering]:
    known, named = model.spellings, {number: spelling(name) for number, name in written.names.items()}
    meaning = {number: known[name] for number, name in named.items() if name in known}
    if not meaning or (all(named[each].isdigit() for each in meaning) and not {*written.used} <= meaning.keys()):
        return []  # no names, or numbers that may count from elsewhere
    unnamed = 0 if written.rest is None else written.rest  # of the background in files that name all else
    background = [known[name] for name in _BACKGROUNDS if name in known and unnamed not in named]
    return [Numbering(how=_BY_NAME, meaning=meaning | dict(zip([unnamed], background, strict=False)))]


def _by_number(written: WrittenClasses, model: ModelClasses) -> Iterator[Numbering]:
    """Yield readings of the numbers alone: moved by at most one, or by their order where there are as many."""
    for shift, how in _SHIFTS.items() if written.numbered else ():
        moved = {place - shift: place for place in model.classes if place >= shift}
        yield Numbering(how=how, meaning=_with_rest(moved, written))
    used = sorted({*written.used} - {written.rest})
    some = {"in their order": written.listed, "in the order of those used": used}
    if not written.names:  # the order of numbers at even distances alone says something
        kept = [number for number in used if number not in written.blank]
        even = [each if len({after - before for before, after in pairwise(each)}) < 2 else [] for each in (used, kept)]
        some = {"in their order": even[0], "in their order, without the first": even[1]}
    for how, ordered in some.items():
        if len(ordered) == len(model.classes):
            meaning = _with_rest(dict(zip(ordered, model.classes, strict=True)), written)
            yield Numbering(how=how, meaning=meaning, assumed=not written.numbered or ordered is used)


def _with_rest(meaning: dict[int, int], written: WrittenClasses) -> dict[int, int]:
    """Return ``meaning`` where pixels without an annotation are those of a listed background, else output 0 if free."""
    if written.rest is None or written.rest in meaning:
        return meaning
    outputs = {spelling(written.names.get(number, "")): meaning.get(number) for number in written.listed}
    background = [outputs[name] for name in _BACKGROUNDS if name in outputs]
    place = background[0] if background else None if 0 in outputs.values() else 0
    return meaning if place is None else {**meaning, written.rest: place}


def _rank(reading: Numbering, written: WrittenClasses, model: ModelClasses) -> int:
    meaning, free = reading.meaning, {*reading.blank, *written.blank, written.rest}
    if not {*written.used} - free <= meaning.keys():
        return _MISFIT
    if not {*written.listed} - free <= meaning.keys():
        return _USED
    met = {meaning[number] for number in meaning.keys() & {*written.listed, written.rest}}
    return _EXACT if met >= {*model.classes} else _LISTED


def _proposal(reading: Numbering, written: WrittenClasses, *, num_others: int = 0, certain: bool) -> LabelMapProposal:
    meaning, labels = reading.meaning, written.labels
    kept = sorted(meaning.keys() & labels.keys() if written.names else meaning)
    return LabelMapProposal(
        pairs=tuple((labels.get(number, str(number)), meaning[number]) for number in kept),
        unmatched=tuple(labels[number] for number in sorted(written.used) if number not in meaning),
        words=reading.how,
        num_orders=1 + (num_others or not certain),  # without certainty there is one more at least
        certain=certain,
    )


def _read_as(
    values: PerImage, order: LabelMapProposal, *, written: WrittenClasses, model: ModelClasses, renumber: Renumber
) -> tuple[PerImage, tuple[str, ...]]:
    """Return annotations by one reading, and the names of the model's outputs."""
    outputs = dict(order.pairs)
    meaning = {number: outputs[label] for number, label in written.labels.items() if label in outputs}
    known = {output: written.names[number] for number, output in meaning.items() if number in written.names}
    shown = tuple(known.get(number, f"class {number}") for number in range(model.num_outputs)) if known else ()
    return renumber(values, meaning), tuple(model.names) or shown


def _are_strangers(written: WrittenClasses, model: ModelClasses) -> bool:
    """Whether both sides have names that say more than numbers, and none is in both."""
    known = {name for name in model.spellings if not _PLACEHOLDER.fullmatch(name)}
    return bool(known and written.names) and known.isdisjoint(map(spelling, written.names.values()))


def _notes(orders: Sequence[LabelMapProposal], written: WrittenClasses, model: ModelClasses) -> Iterator[str]:
    first, *others = orders
    if _are_strangers(written, model):
        yield "None of the names in the annotations is one of the model's classes."
    if not first.certain:
        also = listed(each.words for each in others) or "any other order"
        yield f"Class numbers are only assumed: {first.words}; {also} would fit as well."
    elif first.words not in (_BY_NAME, _GIVEN, _AS_WRITTEN):
        yield f"Class numbers are read {first.words}."
    outputs, labels = dict(first.pairs), written.labels
    unknown = [labels[number] for number in written.listed if number in written.names and labels[number] not in outputs]
    if first.words == _BY_NAME and unknown:
        yield f"The model has no class {first_names(list(map(printable, unknown)))}."
    rest = "" if written.rest is None else labels[written.rest]
    if rest:
        yield f"Pixels without an annotation are {f'of class {outputs[rest]}' if rest in outputs else 'void'}."
    told = {rest, *(unknown if first.words == _BY_NAME else ())}
    left = [printable(label) for label in first.unmatched if label not in told]
    if left:
        yield f"Left out, as they mean no class of the model: {first_names(left)}."
