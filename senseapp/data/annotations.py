"""Annotations of the pictures of a folder or archive: found by a task's reader, and read like foreign pictures."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import PurePosixPath
from typing import Any

import numpy as np

from senseapp.core.errors import InvalidDataset, SenseError, first_line_of
from senseapp.core.texts import listed, plural, printable
from senseapp.data.contents import Contents, Entry, PictureSource, Unreadable, read_beside
from senseapp.data.geometry import Geometry
from senseapp.data.label_tables import PictureNames
from senseapp.data.picture_process import decoded
from senseapp.tasks.annotations import LABEL_FOLDERS, AnnotationFiles, AnnotationReader, Listing, pairs_by_stem


@dataclass(frozen=True, slots=True)
class Annotations:
    """The annotations of some pictures of a source, by the paths of the pictures.

    Attributes:
        found: what the reader found.
        entries: the file of each picture that has one of its own.
    """

    reader: AnnotationReader
    found: AnnotationFiles
    entries: Mapping[str, Entry]

    def __contains__(self, picture: str) -> bool:
        return picture in self.entries or picture in self.found.parsed

    def file_of(self, picture: str, source: PictureSource) -> bytes:
        """Return the annotation file of a picture; empty where its annotation was read before. Raises Unreadable."""
        return source.read(self.entries[picture]) if picture in self.entries else b""

    def placed(self, picture: str, file: bytes, geometry: Geometry, *, foreign: bool) -> Any:
        """Return the annotation of a picture in the coordinates of the network's input.

        ``file`` is its own file, if it has one; a ``foreign`` label image is decoded in a process that can be ended.
        Raises Unreadable where it is damaged, or of another picture.
        """
        reader = self.reader
        try:
            if picture not in self.entries:
                return reader.place(self.found.parsed[picture], geometry)
            if not reader.label_images:
                return reader.place(reader.read(file), geometry)
            values = np.asarray(decoded(file, "index", foreign=foreign).picture)
            if values.ndim == 3 and not reader.colours:
                raise Unreadable("colours instead of class numbers")
            return reader.place(values, geometry)
        except Unreadable as reason:
            raise type(reason)(f"its {reader.words[0]}: {reason}") from reason
        except Exception as error:  # on damaged files a reader may run into anything
            raise Unreadable(f"its {reader.words[0]}: {_said(error)}") from error


def find_annotations(source: PictureSource, reader: AnnotationReader, *, chosen: str = "") -> Annotations:
    """Return which pictures of ``source`` are annotated, by its files or by the one that a person has ``chosen``.

    What is no picture to measure on is taken out of the listing. Raises InvalidDataset where the chosen one does not
    exist, or a file for many pictures is damaged.
    """
    contents = source.contents
    if chosen and contents.entry(chosen) is None and chosen not in contents.folders:
        raise InvalidDataset(
            f"There is no file or folder {printable(chosen)} in {source.title}. Choose one that holds "
            f"{reader.words[1]}, or none to have them looked for."
        )
    try:
        found = reader.find(
            Listing(
                pictures=contents.pictures.keys(),
                others=(*contents.tables, *contents.others),
                chosen=chosen,
                read=partial(read_beside, source),
                named=partial(_named, contents),
            )
        )
    except SenseError:
        raise
    except Exception as error:  # as above
        raise InvalidDataset(
            f"The {reader.words[1]} in {source.title} cannot be read ({_said(error)}). Export them again."
        ) from error
    entries = {picture: contents.entry(file) for picture, file in found.files.items()}
    contents.set_aside((*found.files.values(), *found.no_pictures))
    return Annotations(
        found.reader or reader, found, {picture: entry for picture, entry in entries.items() if entry is not None}
    )


def _named(contents: Contents, names: Sequence[str], beside: str) -> Sequence[str | None]:
    folder = str(PurePosixPath(beside).parent).removeprefix(".")
    return PictureNames(contents.pictures, folder, "").match(names).pictures


def set_masks_aside(contents: Contents) -> tuple[str, ...]:
    """Take masks of other pictures out of the pictures to measure on, and say so.

    Masks are what lies in a folder of that name beside pictures, where at least half of them have the name of one.
    """
    if not any(part in LABEL_FOLDERS for folder in contents.folders for part in folder.casefold().split("/")):
        return ()
    pairs, masks = pairs_by_stem(contents.pictures, contents.pictures)
    if not masks or 2 * len(pairs) < len(masks):
        return ()
    contents.set_aside(masks)
    folders = listed(sorted({mask.rpartition("/")[0] for mask in masks}))
    return (
        f"{plural(len(masks), 'file')} in {folders} left out: they are masks of the pictures beside them, which are no "
        "class and which this task does not read.",
    )


def _said(error: Exception) -> str:
    said = first_line_of(error)
    return said if isinstance(error, ValueError) else f"{type(error).__name__}: {said}"
