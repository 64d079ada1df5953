"""Numbers as text: with units and a suitable number of digits."""

import itertools
import re
from collections.abc import Iterable, Sequence

from senseapp.core.files import DAY_SECONDS
from senseapp.core.texts import bytes_size as bytes_size  # formats as the others here do
from senseapp.core.texts import plural as plural
from senseapp.core.texts import three_digits

_LONGEST_STEM = 60  # characters of a file's name, without what is appended
_STEPS = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))  # decimal prefixes of SI, with T for 10**12


def count(number: float, *, unit: str = "") -> str:
    """Return a count with a decimal prefix, for example ``11.7 M``; whole numbers below a thousand stay whole."""
    suffix = f" {unit}" if unit else ""
    for step, prefix in _STEPS:
        if abs(number) >= step:
            return f"{three_digits(number / step)} {prefix}{suffix}"
    return f"{number:,.0f}{suffix}"


def short(number: float) -> str:
    """Return a positive number in three digits, without an exponent.

    >>> short(0.1234), short(36.0), short(999.9999)
    ('0.123', '36', '1,000')
    """
    return f"{number:.3g}" if number < 999.5 else f"{number:,.0f}"


def percent(fraction: float, *, digits: int = 0) -> str:
    """Return a fraction as percent: ``0.5`` becomes ``50 %``."""
    return f"{100 * fraction:.{digits}f} %"


def points(*shares: float) -> str:
    """Return shares in points, with a real minus sign; two are the ends of an interval.

    >>> points(-0.003)
    '−0.3'
    >>> points(-0.233, 0.041)
    '−23.3 to 4.1'
    """
    return " to ".join(f"{100 * each:.1f}" for each in shares).replace("-", "−")


def duration(seconds: float) -> str:
    """Return a length of time with the precision it deserves: ``0.4 s``, ``40 s``, ``2 min 10 s``, ``3 h 5 min``."""
    if seconds < 9.95 and seconds != int(seconds):
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes} min {rest} s" if rest else f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if minutes else f"{hours} h"


def about(seconds: float) -> str:
    """Return a predicted length of time, no more exact than predictions are: ``a few seconds``, ``about 40 s``.

    Above two minutes these are half minutes, and above ten whole ones.
    """
    step = 1 if seconds <= 120 else 30 if seconds <= 600 else 60
    return "a few seconds" if seconds < 4.5 else f"about {duration(step * round(seconds / step))}"


def clock(seconds: float) -> str:
    """Return elapsed time in a form that does not jump in width: ``0:07``, ``12:30``, ``1:02:03``."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def age(then_seconds: float, now_seconds: float) -> str:
    """Return how long ago a Unix time was: ``just now``, ``5 min ago``, ``2 days ago``."""
    passed = max(0.0, now_seconds - then_seconds)
    if passed < 60:
        return "just now"
    if passed < 3600:
        return f"{passed // 60:.0f} min ago"
    if passed < DAY_SECONDS:
        return f"{passed // 3600:.0f} h ago"
    return f"{plural(int(passed // DAY_SECONDS), 'day')} ago"


def ordinal(place: int) -> str:
    """Return a place in a row: ``1st``, ``2nd``, ``11th``."""
    endings = {1: "st", 2: "nd", 3: "rd"}
    return f"{place}{'th' if place % 100 in (11, 12, 13) else endings.get(place % 10, 'th')}"


def shape(sizes: Sequence[int | str]) -> str:
    """Return the sizes of a tensor: ``64 × 3 × 7 × 7``."""
    return " × ".join(str(size) for size in sizes) or "–"


def cut_middle(name: str, width: int = 28) -> str:
    """Shorten a layer name in the middle, where names of one block are alike, to at most ``width`` characters."""
    if len(name) <= width:
        return name
    head = (width - 1) // 2
    return f"{name[:head]}…{name[-(width - 1 - head) :]}"


def distinct_names(names: Iterable[str], width: int) -> dict[str, str]:
    """Return each of ``names`` with at most ``width`` characters, different ones for different names.

    Names are cut in the middle; where that makes two alike, at the front; where that does too, around the first place
    in which they differ.
    """
    shown = {name: cut_middle(name, width) for name in names}
    if len(set(shown.values())) < len(shown):
        shown = {name: name if len(name) <= width else f"…{name[1 - width :]}" for name in shown}
    alike: dict[str, list[str]] = {}
    for name, text in shown.items():
        alike.setdefault(text, []).append(name)
    numbers = itertools.count(1)
    for group in (group for group in alike.values() if len(group) > 1):
        differs = (place for place, letters in enumerate(zip(*group, strict=False)) if len(set(letters)) > 1)
        start = next(differs, 0)
        shown |= {name: f"…{name[start : start + width // 2]}… #{next(numbers)}" for name in group}
    return shown


def file_stem(title: str) -> str:
    """Return a title as the name of a file on any system, without a suffix: ``what_does_each_layer_lose``."""
    return re.sub(r"[^a-z0-9]+", "_", title.lower()).strip("_")[:_LONGEST_STEM].rstrip("_")
