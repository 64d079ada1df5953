"""Match of names in a table with pictures: as they are written, else in another spelling."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from senseapp.data.contents import PICTURE_SUFFIXES

_DRIVE = re.compile(r"^[A-Za-z]:/")
_DELIMITERS = re.compile(r"[;\t|\"]")  # in a folder of a path: the line was split at something else
_NUMBER = re.compile(r"(\d{1,18})(?:\.0+)?", re.ASCII)


@dataclass(slots=True, eq=False)
class Matched:
    """Pictures that the cells of one column mean.

    Attributes:
        pictures: of each cell; None where it means none.
        num_exact: how many different cells name a picture as its path is written.
        num_spelled: how many do in another spelling.
    """

    pictures: list[str | None]
    num_exact: int
    num_spelled: int

    @property
    def distinct(self) -> int:
        """Number of pictures that are named."""
        return len({picture for picture in self.pictures if picture is not None})


class PictureNames:
    """The names under which a table may list the ``pictures`` of a folder or archive.

    A picture is named by its path in the archive, by its path from the table's ``folder`` or from the folder that holds
    all pictures, ``common``, or by its bare name where only one picture has it. What no path is written like is looked
    for without regard to capitals, suffixes, zeros before a number, and folders that are not here. Unicode is compared
    in its composed form (NFC). A name that two pictures have in one spelling names neither.
    """

    def __init__(self, pictures: Iterable[str], folder: str, common: str) -> None:
        names = list(pictures)
        starts = dict.fromkeys(start for start in (f"{folder}/" if folder else "", common) if start)
        self._whole = [[(name, name) for name in names]]
        self._whole += [[(name[len(s) :], name) for name in names if name.startswith(s)] for s in starts]
        self._bare = [(name.rpartition("/")[2], name) for name in names]
        self._kept: dict[Callable[[str], str], tuple[dict[str, str | None], dict[str, str | None]]] = {}

    def match(self, cells: Sequence[str], *, exact: bool = False) -> Matched:
        """Return the picture that each of ``cells`` means; with ``exact``, only those that are written alike."""
        names = {cell: _cleaned(cell) for cell in dict.fromkeys(cells) if cell}
        found = {cell: picture for cell, name in names.items() if (picture := self._look_up(name, _composed))}
        num_exact, claimed = len(found), set(found.values())
        for cell, name in () if exact else names.items():
            if cell not in found and (picture := self._look_up(name, _loose)) and picture not in claimed:
                found[cell] = picture
        return Matched(
            pictures=[found.get(cell) for cell in cells], num_exact=num_exact, num_spelled=len(found) - num_exact
        )

    def _look_up(self, name: str, key_of: Callable[[str], str]) -> str | None:
        """Return the picture of a name: bare names have no folder, and other folders need whole paths."""
        if key_of not in self._kept:
            whole = _index(self._whole, key_of)
            self._kept[key_of] = whole, _index([self._bare], key_of) | whole
        whole, known = self._kept[key_of]
        picture = known.get(key_of(name))
        if picture is None and not _DELIMITERS.search(name):
            picture = next((each for part in _inner_paths(name) if (each := whole.get(key_of(part)))), None)
        return picture


def _index(forms: Iterable[Iterable[tuple[str, str]]], key_of: Callable[[str], str]) -> dict[str, str | None]:
    """Return the picture of each key, None where two have it; earlier forms win."""
    known: dict[str, str | None] = {}
    for paths in forms:
        own: dict[str, str | None] = {}
        for path, picture in paths:
            key = key_of(path)
            own[key] = picture if own.get(key, picture) == picture else None
        known = own | known
    known.pop("", None)
    return known


def has_picture_suffix(name: str) -> bool:
    """Return whether ``name`` ends like the file of a picture."""
    return name[name.rfind(".") :].lower() in PICTURE_SUFFIXES


def _cleaned(name: str) -> str:
    """Return a name with forward slashes, composed letters, and without a drive or leading ``./``."""
    path = _composed(name).replace("\\", "/")
    return _DRIVE.sub("", path).removeprefix("./").lstrip("/")


def _composed(name: str) -> str:
    return name if name.isascii() else unicodedata.normalize("NFC", name)


def _inner_paths(name: str) -> Iterator[str]:
    """Yield the path without its first folder, its first two, and so on.

    >>> list(_inner_paths("a/b/c.png"))
    ['b/c.png', 'c.png']
    """
    for _ in range(min(50, name.count("/"))):  # folders of a path
        name = name.partition("/")[2]
        yield name


def _loose(path: str) -> str:
    """Return a path in small letters without the suffix of a picture, or the number that it is.

    >>> _loose("Val/A.PNG"), _loose("00012.jpg"), _loose("12.0")
    ('val/a', '12', '12')
    """
    stem = _composed(path.rpartition(".")[0] if has_picture_suffix(path) else path).casefold()
    number = _NUMBER.fullmatch(stem)
    return str(int(number[1])) if number else stem
