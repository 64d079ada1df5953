"""Match of names in a table with pictures: paths, bare names, names without suffix or in another spelling."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

from senseapp.data.contents import PICTURE_SUFFIXES

Spelling: TypeAlias = Literal["as written", "other folder", "other case", "no suffix", "other suffix", "number"]
SPELLINGS: Final[tuple[Spelling, ...]] = (
    "as written",
    "other folder",
    "other case",
    "no suffix",
    "other suffix",
    "number",
)
"""From strict to tolerant; a picture that one spelling names is not looked for under a later one."""

_DRIVE = re.compile(r"^[A-Za-z]:/")
_DELIMITERS = re.compile(r"[;\t|\"]")  # in a folder of a path: the line was split at something else
_NUMBER = re.compile(r"(\d{1,18})(?:\.0+)?", re.ASCII)


@dataclass(slots=True, eq=False)
class Matched:
    """Pictures that the cells of one column mean.

    Attributes:
        pictures: of each cell; None where it means none.
        counts: how many cells were matched in each spelling.
    """

    pictures: list[str | None]
    counts: Counter[Spelling] = field(default_factory=Counter)

    @property
    def distinct(self) -> int:
        """Number of pictures that are named."""
        return len({picture for picture in self.pictures if picture is not None})


class PictureNames:
    """The names under which a table may list the ``pictures`` of a folder or archive.

    A picture is named by its path in the archive, by its path from the table's ``folder`` or from the folder that holds
    all pictures, or by its bare name where only one picture has it. Unicode is compared in its composed form (NFC).
    A name that two pictures have in one spelling names neither.
    """

    def __init__(self, pictures: Iterable[str], folder: str, common: str) -> None:
        names = list(pictures)
        starts = dict.fromkeys(start for start in (f"{folder}/" if folder else "", common) if start)
        self._whole = [[(name, name) for name in names]]
        self._whole += [[(name[len(s) :], name) for name in names if name.startswith(s)] for s in starts]
        self._bare = [(name.rpartition("/")[2], name) for name in names]
        self._kept: dict[Spelling, tuple[dict[str, str | None], dict[str, str | None]]] = {}

    def match(self, cells: Sequence[str], spellings: Sequence[Spelling] = SPELLINGS) -> Matched:
        """Return the picture that each of ``cells`` means; strict spellings come first."""
        names = {cell: _cleaned(cell) for cell in dict.fromkeys(cells) if cell}
        found: dict[str, str] = {}
        counts: Counter[Spelling] = Counter()
        for spelling in spellings:
            pending = [cell for cell in names if cell not in found]
            if not pending:
                break
            look_up, claimed = self._look_up(spelling), set(found.values())
            for cell in pending:
                picture = look_up(names[cell])
                if picture is not None and picture not in claimed:
                    found[cell] = picture
                    counts[spelling] += 1
        return Matched(pictures=[found.get(cell) for cell in cells], counts=counts)

    def _look_up(self, spelling: Spelling) -> Callable[[str], str | None]:
        """Return what finds the picture of a name: bare names have no folder, and other folders need whole paths."""
        of_picture, of_name = _KEYS[spelling]
        if spelling not in self._kept:
            whole = _index(self._whole, of_picture)
            self._kept[spelling] = whole, _index([self._bare], of_picture) | whole
        whole, known = self._kept[spelling]

        def look_up(name: str) -> str | None:
            picture = known.get(of_name(name))
            if picture is None and spelling != "as written" and not _DELIMITERS.search(name):
                picture = next((each for part in _inner_paths(name) if (each := whole.get(of_name(part)))), None)
            return picture

        return look_up


def _index(forms: Iterable[Iterable[tuple[str, str]]], key_of: Callable[[str], str]) -> dict[str, str | None]:
    """Return the picture of each key, None where two have it; earlier forms win."""
    known: dict[str, str | None] = {}
    for paths in forms:
        of_form: dict[str, str | None] = {}
        for path, picture in paths:
            key = path if key_of is _same and path.isascii() else key_of(_composed(path))
            if of_form.setdefault(key, picture) != picture:
                of_form[key] = None
        known = of_form | known if known else of_form
    known.pop("", None)
    return known


def has_picture_suffix(name: str) -> bool:
    """Return whether ``name`` ends like the file of a picture."""
    return name[name.rfind(".") :].lower() in PICTURE_SUFFIXES


def _cleaned(name: str) -> str:
    """Return a name with forward slashes, composed letters, and without a drive or leading ``./``."""
    path = _composed(name).replace("\\", "/")
    return (_DRIVE.sub("", path) if ":" in path else path).removeprefix("./").lstrip("/")


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


def _stem(path: str) -> str:
    return (path.rpartition(".")[0] if has_picture_suffix(path) else path).casefold()


def _number(path: str) -> str:
    found = _NUMBER.fullmatch(_stem(path))
    return str(int(found[1])) if found else ""


def _same(path: str) -> str:
    return path


_KEYS: Mapping[Spelling, tuple[Callable[[str], str], Callable[[str], str]]] = {
    "as written": (_same, _same),
    "other folder": (_same, _same),
    "other case": (str.casefold, str.casefold),
    "no suffix": (_stem, str.casefold),
    "other suffix": (_stem, _stem),
    "number": (_number, _number),
}
"""What is compared: of a picture's path, and of a name in the table."""
