"""Annotations of all pictures in one JSON file, as COCO writes them.

Source: https://cocodataset.org/#format-data.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from senseapp.core.texts import plural, printable
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
    """

    path: str
    pictures: Mapping[PictureId, CocoPicture]
    objects: Mapping[PictureId, Sequence[Written]]
    names: Mapping[int, str]

    def present(self, listing: Listing) -> tuple[dict[str, PictureId], tuple[str, ...]]:
        """Return the id of each picture that is there, by its path, and a sentence on those that are not."""
        paths = listing.named([each.name for each in self.pictures.values()], beside=self.path)
        found = {path: number for number, path in zip(self.pictures, paths, strict=True) if path is not None}
        lost = len(paths) - len(found)
        return found, ((f"{printable(self.path)} lists {plural(lost, 'picture')} that are not there.",) if lost else ())

    @property
    def class_names(self) -> tuple[str, ...]:
        """The names by class number; numbers that are not used have an empty one."""
        return tuple(self.names.get(number, "") for number in range(max(self.names, default=-1) + 1))


def find_coco(
    listing: Listing,
    interpret: Callable[[CocoFile], AnnotationFiles | None],
    *,
    first: Sequence[str],
    class_number: Callable[[object], int],
) -> AnnotationFiles | None:
    """Return what ``interpret`` makes of the first file that lists pictures which are there.

    Where no file does, nothing is ``parsed``, and the notes are those of the first that lists others; None without one.
    Files whose names have a part of ``first`` are read before others; of ones that a person chose, only that one.

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
            file = _read(listing, path, class_number)
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


def _read(listing: Listing, path: str, class_number: Callable[[object], int]) -> CocoFile | None:
    content = parsed_json(listing.read(path))
    if not isinstance(content, Mapping) or not {"images", "annotations"} <= content.keys():
        if listing.chosen:
            raise ValueError('a COCO file has the keys "images" and "annotations"')
        return None
    objects: dict[PictureId, list[Written]] = {}
    for each in _list_of(content, "annotations"):
        objects.setdefault(_id(each, "image_id", "an annotation"), []).append(each)
    categories = _list_of(content, "categories") if "categories" in content else []
    return CocoFile(
        path=path,
        pictures=_pictures(_list_of(content, "images")),
        objects=objects,
        names={class_number(required(each, "id", "a category")): str(each.get("name", "")) for each in categories},
    )


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


def _list_of(content: Mapping[str, Any], key: str) -> list[Any]:
    value = content[key]
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
