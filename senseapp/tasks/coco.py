"""Annotations of all pictures in one JSON file, as COCO writes them.

Source: https://cocodataset.org/#format-data.
"""

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from senseapp.core.foreign_values import is_int, whole
from senseapp.core.texts import first_names, plural, printable
from senseapp.tasks.annotations import AnnotationFiles, Listing

PictureId: TypeAlias = int | str
Written: TypeAlias = Mapping[str, Any]
"""One object as the file has it."""
PictureSize: TypeAlias = tuple[int, int] | None
"""(width, height) in pixels; None where the file does not say."""
_USUAL = ("instances", "stuff", "coco", "annotations", "segmentation", "masks", "boxes", "labels")  # parts of names
_MOST_BYTES = 64_000_000  # the file of COCO's validation pictures has 20 MB
_MOST_PICTURES = 500_000  # four times COCO's training pictures


def find_coco(
    listing: Listing,
    parse: Callable[[Sequence[Written], PictureSize], Any],
    *,
    part: str,
    check: Callable[[Written], object],
    most: int,
) -> AnnotationFiles | None:
    """Return what ``parse`` makes of the objects of each picture, by the first file that lists pictures that are there.

    Where no file does, nothing is ``parsed``, and the notes are those of the first that lists others; None without one.
    Files with usual names are read before others; of ones that a person chose, only that one. Annotations that have no
    ``part``, or that ``check`` raises ValueError for, are left out, and said; classes are numbered below ``most``.

    Raises:
        ValueError: a file that a person chose, or all that look like one, are damaged; the message says what is wrong.
    """
    paths = sorted(path for path in listing.others if path.casefold().endswith(".json"))
    likely = sorted(paths, key=lambda path: (not any(part in path.casefold() for part in _USUAL), path))
    damaged: list[ValueError] = []
    elsewhere: AnnotationFiles | None = None
    for path in [listing.chosen] if listing.chosen else likely[:8]:
        try:
            lists = _lists(parsed_json(listing.read(path)), part, is_chosen=bool(listing.chosen))
            if lists is None:
                continue
            pictures = _pictures(lists["images"])
            names, objects, notes = _objects(lists, path, part, check, most)
            paths_of = listing.named([name for name, _ in pictures.values()], path)
            present = {there: number for number, there in zip(pictures, paths_of, strict=True) if there is not None}
            parsed = {there: parse(objects.get(number, ()), pictures[number][1]) for there, number in present.items()}
        except ValueError as error:
            damaged.append(ValueError(f"{printable(path)}: {error}"))
            continue
        lost = len(pictures) - len(present)
        if lost:
            notes.append(f"{printable(path)} lists {plural(lost, 'picture')} that are not there.")
        used = Counter(
            label for number in present.values() for label in {each["category_id"] for each in objects.get(number, ())}
        )
        found = AnnotationFiles(parsed=parsed, choices=tuple(paths), names=names, used=used, notes=tuple(notes))
        if parsed or listing.chosen:
            return found
        elsewhere = elsewhere or AnnotationFiles(choices=tuple(paths), notes=found.notes)
    if damaged:
        raise damaged[0]
    return elsewhere


def _lists(content: object, part: str, *, is_chosen: bool) -> Mapping[str, list[Any]] | None:
    """Return pictures, annotations and categories of a COCO file with such a part; else None, unless chosen."""
    if not isinstance(content, Mapping) or not {"images", "annotations"} <= content.keys():
        if is_chosen:
            raise ValueError('a COCO file has the keys "images" and "annotations"')
        return None
    lists = {key: content.get(key, []) for key in ("annotations", "images", "categories")}
    for key, value in lists.items():
        if not isinstance(value, list):
            raise ValueError(f'"{key}" must be a list')
        is_open = key == "annotations" and value and not is_chosen
        if is_open and not any(isinstance(each, Mapping) and part in each for each in value):
            return None
    return lists


def _objects(
    lists: Mapping[str, list[Any]], path: str, part: str, check: Callable[[Written], object], most: int
) -> tuple[tuple[str, ...], dict[PictureId, list[Written]], list[str]]:
    """Return class names by number, the objects of each picture, and a sentence where some are left out."""
    written = lists["annotations"]
    names = _classes(lists["categories"], written, most)
    objects: dict[PictureId, list[Written]] = {}
    refused: list[str] = []
    for each in written:
        try:
            picture = _id(each, "image_id", "an annotation")
            label = whole(required(each, "category_id", "an annotation"), "a class number", most=most - 1)
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
    left = [f"{plural(len(refused), 'annotation')} in {printable(path)} left out: {reasons}."] if refused else []
    return tuple(names.get(number, "") for number in range(max(names, default=-1) + 1)), objects, left


def _classes(categories: Sequence[Any], written: Sequence[Any], most: int) -> dict[int, str]:
    """Return the name of each class number, but a first one that names the whole set, as Roboflow writes it."""
    names = {whole(_id(each, "id", "a category"), "a class number", most=most - 1): each for each in categories}
    if len(names) > 1:
        first, *others = sorted(names)
        is_set = {str(names[number].get("supercategory")) for number in others} == {str(names[first].get("name"))}
        used = (each.get("category_id") for each in written if isinstance(each, Mapping))
        if is_set and names[first]["id"] not in used:
            del names[first]
    return {number: str(each.get("name", "")) for number, each in names.items()}


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


def _pictures(values: list[Any]) -> dict[PictureId, tuple[str, PictureSize]]:
    """Return the name and the size of each picture."""
    if len(values) > _MOST_PICTURES:
        raise ValueError(f'"images" must be a list of up to {_MOST_PICTURES:,} pictures')
    found: dict[PictureId, tuple[str, PictureSize]] = {}
    for each in values:
        number, name = _id(each, "id", "a picture"), required(each, "file_name", "a picture")
        if not isinstance(name, str):
            raise ValueError("a file_name that is no text")
        if number in found:
            raise ValueError(f"two pictures with the id {str(number)[:40]!r}")
        size = each.get("width"), each.get("height")
        found[number] = name, size if all(is_int(side) and side > 0 for side in size) else None
    return found


def _id(value: object, key: str, what: str) -> PictureId:
    number = required(value, key, what)
    if not is_int(number) and not isinstance(number, str):
        raise ValueError(f"{what} whose {key} is neither a number nor a text")
    return number


def required(value: object, key: str, what: str) -> Any:
    """Return ``value[key]``; raises ValueError where ``what`` has none."""
    if not isinstance(value, Mapping) or key not in value:
        raise ValueError(f"{what} without {key}")
    return value[key]
