"""Annotations of all pictures in one JSON file, as COCO writes them.

Source: https://cocodataset.org/#format-data.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias

from senseapp.core.texts import first_names, plural, printable
from senseapp.tasks.annotations import AnnotationFiles, Listing

PictureId: TypeAlias = int | str
Written: TypeAlias = Mapping[str, Any]
"""One object as the file has it."""
_MOST_BYTES = 64_000_000  # the file of COCO's validation pictures has 20 MB
_MOST_FILES = 8  # tried, the likeliest first: each may have 64 MB
_MOST_PICTURES = 500_000  # four times COCO's training pictures


@dataclass(frozen=True, slots=True, kw_only=True)
class CocoPicture:
    """Name of a picture, and its (width, height) in pixels; None where the file does not say."""

    name: str
    size: tuple[int, int] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CocoFile:
    """Content of one file.

    Attributes:
        pictures: by their ids.
        objects: of each picture, by its id; also of pictures that the file does not list.
        names: of classes, by their numbers.
        notes: sentences on what was left out.
    """

    path: str
    pictures: Mapping[PictureId, CocoPicture]
    objects: Mapping[PictureId, Sequence[Written]]
    names: Mapping[int, str]
    notes: tuple[str, ...] = ()

    def present(self, listing: Listing) -> tuple[dict[str, PictureId], tuple[str, ...]]:
        """Return the id of each picture that is there, by its path, and a sentence on those that are not."""
        paths = listing.named([each.name for each in self.pictures.values()], beside=self.path)
        found = {path: number for number, path in zip(self.pictures, paths, strict=True) if path is not None}
        lost = len(paths) - len(found)
        said = (f"{printable(self.path)} lists {plural(lost, 'picture')} that are not there.",) if lost else ()
        return found, (*self.notes, *said)

    def used(self, present: Iterable[PictureId]) -> Counter[int]:
        """Return how many of some pictures have each class."""
        classes = ({each["category_id"] for each in self.objects.get(number, ())} for number in present)
        return Counter(label for found in classes for label in found)

    @property
    def class_names(self) -> tuple[str, ...]:
        """The names by class number; numbers that are not used have an empty one."""
        return tuple(self.names.get(number, "") for number in range(max(self.names, default=-1) + 1))


def find_coco(
    listing: Listing,
    interpret: Callable[[CocoFile], AnnotationFiles | None],
    *,
    first: Sequence[str],
    part: str,
    check: Callable[[Written], object],
    most: int,
) -> AnnotationFiles | None:
    """Return what ``interpret`` makes of the first file that lists pictures which are there.

    Where no file does, nothing is ``parsed``, and the notes are those of the first that lists others; None without one.
    Files whose names have a part of ``first`` are read before others; of ones that a person chose, only that one.
    Annotations that have no ``part``, or that ``check`` raises ValueError for, are left out, and said; classes are
    numbered below ``most``.

    Raises:
        ValueError: a file that a person chose, or all that look like one, are damaged; the message says what is wrong.
    """
    paths = sorted(path for path in listing.others if path.casefold().endswith(".json"))
    if listing.chosen:
        ordered = [listing.chosen]
    else:
        ordered = sorted(paths, key=lambda path: (not any(part in path.casefold() for part in first), path))
    damaged: list[ValueError] = []
    elsewhere: AnnotationFiles | None = None
    for path in ordered[:_MOST_FILES]:
        try:
            file = _read(listing, path, part, check, most)
            found = None if file is None else interpret(file)
        except ValueError as error:
            damaged.append(ValueError(f"{printable(path)}: {error}"))
            continue
        if found is not None and (found.parsed or listing.chosen):
            return replace(found, choices=tuple(paths))
        elsewhere = elsewhere or found
    if damaged:
        raise damaged[0]
    return elsewhere and AnnotationFiles(choices=tuple(paths), notes=elsewhere.notes)


def _read(listing: Listing, path: str, part: str, check: Callable[[Written], object], most: int) -> CocoFile | None:
    content = parsed_json(listing.read(path))
    if not isinstance(content, Mapping) or not {"images", "annotations"} <= content.keys():
        if listing.chosen:
            raise ValueError('a COCO file has the keys "images" and "annotations"')
        return None
    written, categories = (_listed(content.get(key, []), key) for key in ("annotations", "categories"))
    if written and not listing.chosen and not any(isinstance(each, Mapping) and part in each for each in written):
        return None
    names, number_of = _classes(categories, written, most)
    objects: dict[PictureId, list[Written]] = {}
    refused: list[str] = []
    for each in written:
        try:
            picture = _id(each, "image_id", "an annotation")
            label = number_of(required(each, "category_id", "an annotation"))
            if not required(each, part, "an annotation"):
                raise ValueError(f"an annotation without {part}")
            check(each)
        except ValueError as error:
            refused.append(str(error))
        else:
            each["category_id"] = label
            objects.setdefault(picture, []).append(each)
    if refused and not objects:
        raise ValueError(refused[0])
    reasons = first_names(list(dict.fromkeys(refused)))
    left = (f"{plural(len(refused), 'annotation')} in {printable(path)} left out: {reasons}.",) if refused else ()
    pictures = _pictures(_listed(content["images"], "images"))
    return CocoFile(path=path, pictures=pictures, objects=objects, names=names, notes=left)


def _classes(
    categories: Sequence[Any], written: Sequence[Any], most: int
) -> tuple[dict[int, str], Callable[[object], int]]:
    """Return the name of each class number, and what returns the number of an id: itself, or its place if it is large.

    A first category without objects that is the supercategory of all others names the set, as Roboflow writes it.
    """
    named = {_id(each, "id", "a category"): each for each in categories}
    number_of: Callable[[object], int] = partial(class_number, most=most)
    ids = [number for number in named if isinstance(number, int) and number >= 0]
    if ids and len(ids) == len(named) < most <= max(ids):
        places = {str(number): place for place, number in enumerate(sorted(ids))}

        def number_of(value: object) -> int:
            if str(value) not in places:
                raise ValueError("an annotation of a category that is not listed")
            return places[str(value)]

    names = {number_of(number): each for number, each in named.items()}
    if len(names) > 1:
        first, *others = sorted(names)
        is_set = {str(names[number].get("supercategory")) for number in others} == {str(names[first].get("name"))}
        used = (each.get("category_id") for each in written if isinstance(each, Mapping))
        if is_set and names[first]["id"] not in used:
            del names[first]
    return {number: str(each.get("name", "")) for number, each in names.items()}, number_of


def class_number(value: object, most: int) -> int:
    """Return a class number; raises ValueError where it is none, or not below ``most``."""
    try:
        number = math.nan if isinstance(value, bool) else float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not 0 <= number < most or number != int(number):
        raise ValueError(f"class numbers must be whole and below {most:,}, got {str(value)[:40]!r}")
    return int(number)


def parsed_json(content: bytes) -> Any:
    """Return the content of a JSON file; raises ValueError with words where it is too large, deep or damaged."""
    if len(content) > _MOST_BYTES:
        raise ValueError(f"{len(content) / 1e6:.0f} MB, and a COCO file may have up to {_MOST_BYTES / 1e6:.0f} MB")
    try:
        return json.loads(content)
    except RecursionError:
        raise ValueError("nested too deeply for a COCO file") from None
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ValueError(f"no JSON ({str(error)[:120]})") from None
    except ValueError:  # Python's limit on digits
        raise ValueError("a number of thousands of digits") from None


def _listed(value: object, key: str) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError(f'"{key}" must be a list')
    return value


def _pictures(values: list[Any]) -> dict[PictureId, CocoPicture]:
    if len(values) > _MOST_PICTURES:
        raise ValueError(f'"images" must be a list of up to {_MOST_PICTURES:,} pictures')
    found: dict[PictureId, CocoPicture] = {}
    for each in values:
        number, name = _id(each, "id", "a picture"), required(each, "file_name", "a picture")
        if not isinstance(name, str):
            raise ValueError("a file_name that is no text")
        if number in found:
            raise ValueError(f"two pictures with the id {str(number)[:40]!r}")
        size = each.get("width"), each.get("height")
        whole = all(isinstance(side, int) and not isinstance(side, bool) and side > 0 for side in size)
        found[number] = CocoPicture(name=name, size=size if whole else None)
    return found


def _id(value: object, key: str, what: str) -> PictureId:
    number = required(value, key, what)
    if not isinstance(number, int | str) or isinstance(number, bool):
        raise ValueError(f"{what} whose {key} is neither a number nor a text")
    return number


def required(value: object, key: str, what: str) -> Any:
    """Return ``value[key]``; raises ValueError where ``what`` has none."""
    if not isinstance(value, Mapping) or key not in value:
        raise ValueError(f"{what} without {key}")
    return value[key]
