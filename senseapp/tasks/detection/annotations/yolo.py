"""Boxes of one picture in a text file, as YOLO writes it: class, centre and size as shares of the picture's sides.

Lines may have further numbers: corners of an outline, key points, a score, the number of a track. Which of these they
are is decided by all lines of a set.

Source: https://docs.ultralytics.com/datasets/detect, /segment, /pose and /obb.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from senseapp.core.foreign_values import BadValue, is_int, read_yaml, whole
from senseapp.tasks.annotations import AnnotationFiles, Listing
from senseapp.tasks.detection.annotations.boxes import MOST_BOXES, MOST_CLASSES, PictureBoxes

Row: TypeAlias = tuple[int, list[float]]
"""The class and the other numbers of a line."""
Columns: TypeAlias = int | Literal["outline", "unknown"]
"""What long lines hold behind the class: so many numbers of which the first four are a box, or corners; or either."""
_MOST_BYTES = 4_000_000  # 5,000 boxes, or outlines, of 800 bytes
_BOX = 4  # numbers of a box
_SLACK = 0.01  # of a side: tools round corners to just outside of the picture
_MOST, _FEW, _HALF, _MANY = 0.9, 0.7, 0.5, 8  # shares and number of lines
_LISTS = ("classes.txt", "obj.names", "labels.txt", "names.txt", "predefined_classes.txt")
_NO_BOXES = (*_LISTS, "readme.txt", "train.txt", "val.txt", "test.txt", "requirements.txt")


def is_boxes_name(path: str) -> bool:
    """Return whether a file of this name may hold boxes of a picture, and no list of pictures or classes."""
    return _file(path) not in _NO_BOXES


def _file(path: str) -> str:
    return path.rpartition("/")[2].casefold()


# ---- lines


def read_yolo(content: bytes, columns: Columns = "outline") -> PictureBoxes:
    """Return the boxes in a file; an empty one says that there are none. Raises ValueError where it is damaged."""
    rows = list(rows_of(content))
    boxes = [_box_of(values, columns, number) for number, (_, values) in rows]
    return PictureBoxes.of(boxes, labels=[label for _, (label, _) in rows], relative=True)


def rows_of(content: bytes) -> Iterator[tuple[int, Row]]:
    """Yield the number of each line and its numbers; raises ValueError where one has none."""
    if len(content) > _MOST_BYTES:
        raise ValueError(f"{len(content) / 1e6:.0f} MB, and a text file of boxes may have {_MOST_BYTES / 1e6:.0f} MB")
    try:
        lines = [line.split() for line in content.decode("utf-8-sig").splitlines()]
    except UnicodeDecodeError:
        raise ValueError("no text file") from None
    if (count := sum(map(bool, lines))) > MOST_BOXES:
        raise ValueError(f"{count:,} lines, and a picture may have up to {MOST_BOXES:,} boxes")
    for number, line in enumerate(lines, 1):
        if line:
            try:
                label = whole(float(line[0]), "a class number", most=MOST_CLASSES - 1)
                yield number, (label, [float(each) for each in line[1:]])
            except ValueError:
                raise ValueError(f"line {number} is not a class number with coordinates") from None


def _box_of(values: list[float], columns: Columns, number: int) -> list[float]:
    """Return left, top, right and bottom, as shares of the sides."""
    count = len(values)
    if count > _BOX and (columns == "unknown" or (isinstance(columns, int) and columns != count)):
        raise ValueError(f"line {number} has {1 + count} numbers, of unknown meaning")
    if columns == count:
        values = values[:_BOX]
    if not all(_inside(value) for value in values):
        raise ValueError(f"line {number} has a coordinate outside of 0 to 1, the share of a side")
    if len(values) == _BOX:
        x, y, width, height = values
        return [x - width / 2, y - height / 2, x + width / 2, y + height / 2]
    if len(values) < 6 or len(values) % 2:
        raise ValueError(f"line {number} has {1 + count} numbers: a box has 5, a polygon 7 or more, an odd number")
    return [min(values[::2]), min(values[1::2]), max(values[::2]), max(values[1::2])]


def _inside(value: float) -> bool:
    return -_SLACK <= value <= 1 + _SLACK


# ---- which columns a set has


def told_by(listing: Listing, contents: Iterable[bytes]) -> tuple[AnnotationFiles, Columns]:
    """Return the classes of a set and the columns of long lines, by some of its files."""
    files: list[list[Row]] = []
    for content in contents:
        with suppress(ValueError):  # its picture is left out with the reason once it is drawn
            files.append([row for _, row in rows_of(content)])
    names, points = find_names(listing)
    columns, note = columns_of(files, points)
    notes = () if names else ("No file names the classes: they are numbers.",)
    used = Counter(label for file in files for label in {label for label, _ in file})
    return AnnotationFiles(names=names, used=used, notes=(*notes, note) if note else notes), columns


def columns_of(files: Sequence[Sequence[Row]], points: tuple[int, int] | None = None) -> tuple[Columns, str]:
    """Return what the long lines of a set hold, and a sentence where there are any.

    ``points`` are the number of key points and of the numbers of each, where a file says them. Else lines of one length
    are boxes where nearly all of them may be, and outlines where many may not; what may be either is not read.
    """
    rows = [values for file in files for _, values in file if all(abs(each) < 1e12 for each in values)]
    long = [values for values in rows if len(values) > _BOX]
    if not long:
        return "unknown", ""
    (count, number), *_ = Counter(map(len, long)).most_common(1)
    what = f"Lines of {1 + count} numbers" if number == len(long) else "Lines of more than 5 numbers"
    alike = np.array([values for values in long if len(values) == count])
    outlines = sum(len(values) % 2 == 0 and all(map(_inside, values)) for values in long) / len(long)
    boxes = _may_be_boxes(alike) * number / len(long)
    told = points is not None and count - _BOX - points[0] * points[1] in (0, 1)
    columns: Columns = "outline" if boxes <= _FEW and outlines > _HALF else "unknown"
    if count == _BOX + 1:
        columns = _sixth([[values[_BOX] for _, values in file if len(values) == count] for file in files])
    elif told or (boxes >= _MOST and (outlines < _HALF or len(long) >= _MANY)):
        columns = count
    if columns == "unknown":
        either = "the angle of a box or a track" if count == _BOX + 1 else "a box with key points or an outline"
        return columns, f"{what} may hold {either}, so they are not read. kpt_shape in data.yaml tells key points."
    if columns == count:
        return columns, f"{what} are read as a class and a box; the others (key points, a score or a track) are not."
    return columns, f"{what} are outlines or turned boxes: the upright box around each is taken."


def _sixth(files: Sequence[Sequence[float]]) -> Columns:
    """Return whether the sixth number is a score, a mark or the number of a track, not the angle of a box."""
    scores = all(0 <= each <= 1 for file in files for each in file)
    whole = all(each >= 0 and each == each // 1 for file in files for each in file)
    repeated = any(len({*file}) < len(file) and max(file) > 2 for file in files)  # no picture has a track twice
    return _BOX + 1 if scores or (whole and not repeated) else "unknown"


def _may_be_boxes(rows: NDArray[np.float64]) -> float:
    """Return the share of lines of one length that may be boxes with key points inside, or a score and a track."""
    centres, sides, others = rows[:, None, :2], rows[:, None, 2:_BOX], rows[:, _BOX:]
    ends = np.concatenate([centres - sides / 2, centres + sides / 2], axis=1)
    holds = ((ends >= -_SLACK) & (ends <= 1 + _SLACK) & (sides > 0)).all(axis=(1, 2))
    shares = [0.0]
    for step in (2, 3):
        if others.shape[1] % step == 0:
            points = others.reshape(len(rows), -1, step)[..., :2]
            near = (abs(points - centres) <= 0.55 * sides + _SLACK) | (points == 0).all(axis=2, keepdims=True)
            shares.append(float((holds & near.all(axis=(1, 2))).mean()))
    last = others[:, -1]
    if others.shape[1] == 2 and bool((last == np.floor(last)).all()) and last.max() > 1:  # tracks behind scores
        shares.append(float(holds.mean()))
    return max(shares)


# ---- names of classes


def find_names(listing: Listing) -> tuple[tuple[str, ...], tuple[int, int] | None]:
    """Return the class names, by number, and the shape of key points that lists and YAML files of a set say."""
    names: tuple[str, ...] = ()
    points: tuple[int, int] | None = None
    suffixes = (".yaml", ".yml")
    told_by = [path for path in listing.others if path.casefold().endswith(suffixes) or _file(path) in _LISTS]
    for path in sorted(told_by, key=lambda path: (path.count("/"), path))[:8]:
        content = listing.read(path)
        if _file(path) in _LISTS:
            told: Mapping[str, Any] = {"names": content[:_MOST_BYTES].decode("utf-8-sig", "replace").splitlines()}
        else:
            told = told_in(content)
        names, points = names or names_of(told.get("names")), points or points_of(told.get("kpt_shape"))
    return names, points


def told_in(content: bytes) -> Mapping[str, Any]:
    """Return the entries of a YAML file; none of one that is large or damaged."""
    try:
        found = read_yaml(content.decode("utf-8-sig"))
    except (UnicodeDecodeError, BadValue):
        return {}
    return found if isinstance(found, dict) else {}


def names_of(told: object) -> tuple[str, ...]:
    """Return names by number from a list, or from a mapping of numbers.

    >>> names_of({0: "cat", 2: "dog"})
    ('cat', '', 'dog')
    """
    entries = told.items() if isinstance(told, dict) else enumerate(told) if isinstance(told, list) else ()
    names = {key: str(name).strip() for key, name in entries if is_int(key) and isinstance(name, str | int | float)}
    kept = {number: name for number, name in names.items() if name and 0 <= number < MOST_CLASSES}
    return tuple(kept.get(number, "") for number in range(max(kept, default=-1) + 1))


def points_of(told: object) -> tuple[int, int] | None:
    """Return the number of key points and of numbers for each, of ``[17, 3]``; None for anything else."""
    fits = isinstance(told, list) and len(told) == 2 and all(is_int(each) and 0 < each < _MOST_BYTES for each in told)
    return (told[0], told[1]) if isinstance(told, list) and fits else None
