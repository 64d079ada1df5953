"""The decision over drawn sets of files: no false sentence, no dominated choice, one answer, monotone in tolerance.

Everything that is checked is defined here once more, from the figures of the files.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import get_args

from hypothesis import given, settings
from hypothesis import strategies as st

from senseapp.core.texts import bytes_size
from senseapp.metrics import METRICS
from senseapp.metrics.intervals import discordant_interval
from senseapp.prove.decision import Decision, decision
from senseapp.records.candidate import Candidate
from senseapp.records.deployment import Median
from senseapp.records.promise import Promise, kept
from senseapp.records.schedule import Schedule
from senseapp.records.spec import Goal
from tests import cases
from tests.deployments import a_candidate, a_counted_change, some_figures

ORIGINAL = some_figures(0.01, 1.0, 903_000)
OF_WEIGHTS = some_figures(0.01, 1.0, 892_000)
IMAGES = 200
FEW_IMAGES = 120  # of some files, measured on others
TOLERANCES = (0.0, 0.005, 0.01, 0.05, 0.3)
GOALS = (*get_args(Goal), "look")

_sizes = st.sampled_from([201_000, *range(298_000, 322_000, 3_000), 880_000, 900_000, 915_000, 950_000])
_times = st.sampled_from([0.36, 0.61, 0.63, 0.65, 0.8, 0.97, 1.0, 1.02, 1.5])
_drawn = st.tuples(
    st.sampled_from(["int8", "int8", "mixed", "onnx", "weights", "small"]),
    _sizes,
    _times,
    st.sampled_from([0.0, 0.02, 0.1, 0.6]),  # how wide the interval of the time is
    st.sampled_from([0, 1, 2, 3, 10, 11, 40]),  # answers that change for the worse
    st.sampled_from([0, 0, 1]),  # and for the better
    st.sampled_from([None, None, 0.1, 0.5, 0.505, 0.9]),  # saved by the schedule
    st.sampled_from([IMAGES, IMAGES, IMAGES, FEW_IMAGES]),
)


def a_file(
    place: int,
    form: str,
    size: int,
    time: float,
    width: float,
    worse: int,
    better: int,
    saved: float | None,
    images: int = IMAGES,
) -> Candidate:
    runs = form in ("onnx", "int8", "mixed")
    suffix = ".onnx" if runs else ".safetensors"
    found = a_candidate(
        form,
        file=f"{'deployed' if runs else 'compressed'}-{place:016x}{suffix}",
        original=ORIGINAL if runs else OF_WEIGHTS,
        schedule=None if saved is None else Schedule(model="m", method="o", entries=(), achieved={"bytes": saved}),
    )
    figures = replace(
        found.figures,
        file_bytes=size,
        time_ratio=Median(value=time, low=time * (1 - width / 2), high=time * (1 + width)),
        changes=(a_counted_change(worse, images, better=min(better, images - worse), metric="top1"),),
    )
    return replace(found, figures=figures, tried=1)


files = st.lists(_drawn, max_size=8).map(lambda drawn: [a_file(place, *each) for place, each in enumerate(drawn)])


def size(one: Candidate) -> int:
    return one.figures.file_bytes


def time(one: Candidate) -> float:
    return one.figures.time_ratio.value


def loss(one: Candidate) -> float:
    return one.loss.delta


def left(one: Candidate) -> float:
    return 1 - one.schedule.achieved["bytes"] if one.schedule is not None else 1.0


def beats(one: Candidate, other: Candidate) -> bool:
    """Whether a file is no worse beyond noise and clearly better in bytes, time or answers."""
    if one is other or one.runs != other.runs or one.images != other.images:
        return False
    mine, theirs = one.figures.time_ratio, other.figures.time_ratio
    as_long = mine.low <= time(other) <= mine.high and theirs.low <= time(one) <= theirs.high
    as_quick = as_long or time(one) <= 1.03 * time(other)
    no_worse = size(one) <= 1.05 * size(other) and as_quick and loss(one) <= loss(other)
    quicker = mine.high < theirs.low and time(one) < 0.97 * time(other)
    return no_worse and (size(one) < 0.95 * size(other) or quicker or one.loss.ci_high < other.loss.ci_low)


def saves_as_much_and_loses_less(one: Candidate, other: Candidate) -> bool:
    return left(one) <= 1.05 * left(other) and one.loss.ci_high < other.loss.ci_low


class Checked:
    """A decision with what its sentences can be checked against."""

    def __init__(self, found: Sequence[Candidate], goal: Goal, tolerance: float, promise: Promise | None) -> None:
        self.found, self.goal, self.promise, self.tolerance = list(found), goal, promise, tolerance
        self.answer = decision(found, goal, tolerance, promise)
        good = {each.file for each in kept(found, promise)} if promise else None
        within = [one for one in found if (loss(one) <= tolerance if good is None else one.file in good)]
        self.found = list(self.answer.compared(found))
        self.within = [one for one in within if one in self.found]
        self.apart = [one for one in found if one not in self.found]
        self.size = next((one.original.file_bytes for one in found if one.runs), OF_WEIGHTS.file_bytes)

    @property
    def choice(self) -> Candidate:
        return next(one for one in self.found if self.answer.choice and one.file == self.answer.choice.file)

    def smaller(self, one: Candidate) -> bool:
        return size(one) <= 0.95 * self.size

    def faster(self, one: Candidate) -> bool:
        return one.figures.time_ratio.high < 1 and time(one) <= 0.97

    def wanted(self, one: Candidate) -> bool:
        if self.goal == "targets":
            return one.schedule is not None
        if self.goal == "faster":
            return self.faster(one) or (self.smaller(one) and time(one) <= 1.03)
        return self.smaller(one) or (self.faster(one) and size(one) <= 1.05 * self.size)

    def is_dominated(self, one: Candidate) -> bool:
        if self.goal != "targets":
            return any(beats(other, one) for other in self.within)
        others = [other for other in self.within if other.schedule is not None]
        return any(saves_as_much_and_loses_less(other, one) for other in others)

    def peers(self, what: str) -> list[Candidate]:
        if what.startswith("tested schedule"):
            return [one for one in self.within if one.schedule is not None]
        runs = what.startswith("file that runs")
        return [one for one in self.within if one.runs == runs]

    def ahead(self, better: str, what: str) -> list[Candidate]:
        axis = {"smaller": size, "faster": time, "stronger": left}[better]
        ahead = [one for one in self.peers(what) if axis(one) < axis(self.choice)]
        if better == "faster":
            return [one for one in ahead if one.figures.time_ratio.high < self.choice.figures.time_ratio.low]
        return ahead if better == "stronger" else [one for one in ahead if size(one) < 0.95 * size(self.choice)]


_L = r"(?:was measured to lose at most (?P<most>\S+ points?)|"
_L += r"is shown to lose at most (?P<shown>\S+ points?), with 95 % certainty)"
_WHAT = rf"(?P<what>file that runs and|file of weights that|tested schedule that) {_L}"


def _best(it: Checked, found: re.Match[str]) -> bool:
    axis = {"smallest": size, "fastest": time, "strongest": left}[found["best"]]
    return axis(it.choice) == min(map(axis, it.peers(found["what"])))


def _or_more(it: Checked, found: re.Match[str]) -> bool:
    axis = {"takes longer": time, "is larger": size}[found["worse"]]
    ahead = it.ahead(found["better"], found["what"])
    return bool(ahead) and all(axis(one) > axis(it.choice) or loss(one) > loss(it.choice) for one in ahead)


def _all_dominated(it: Checked, found: re.Match[str]) -> bool:
    ahead = it.ahead(found["better"], found["what"])
    return bool(ahead) and all(map(it.is_dominated, ahead))


def _second(it: Checked, found: re.Match[str]) -> bool:
    gain = it.faster(it.choice) if found["gain"] == "is faster" else it.smaller(it.choice) and time(it.choice) <= 1.03
    reached = {"smaller": it.smaller, "faster": it.faster}.get(found["axis"] or "", lambda _: False)
    return gain and not any(map(reached, it.within))


_BETTER = r"Every (?:clearly )?(?P<better>smaller|faster|stronger) "
CLAIMS: dict[str, Callable[[Checked, re.Match[str]], bool]] = {
    rf"It is the (?P<best>smallest|fastest|strongest) {_WHAT}\.": _best,
    rf"No other {_WHAT} is clearly (?P<axis>smaller|faster)\.": lambda it, found: (
        not it.ahead(found["axis"], found["what"])
    ),
    rf"{_BETTER}{_WHAT} loses more\.": lambda it, found: all(
        loss(one) > loss(it.choice) for one in it.ahead(found["better"], found["what"])
    ),
    rf"{_BETTER}{_WHAT} (?P<worse>takes longer|is larger) or loses more\.": _or_more,
    rf"{_BETTER}{_WHAT} has a clearly better one beside it\.": _all_dominated,
    rf"(?:No file that {_L} is clearly (?P<axis>smaller|faster); this one|It) "
    r"(?P<gain>is faster|takes about as long and is smaller)\.": _second,
    r"No file has been measured yet\.": lambda it, _: not it.found,
    r"No schedule has been tested yet\.": lambda it, _: all(one.schedule is None for one in it.found),
    rf"No tested schedule {_L}\.": lambda it, _: all(
        one.schedule is None and not it.smaller(one) and not it.faster(one) for one in it.within
    ),
    rf"No tested schedule {_L}; a file without a schedule was: (?P<other>.+)\.": lambda it, found: (
        all(one.schedule is None for one in it.within)
        and any(one.made_of == found["other"] and (it.smaller(one) or it.faster(one)) for one in it.within)
    ),
    r"No measured file is clearly smaller or faster\.": lambda it, _: (
        not any(it.smaller(one) or it.faster(one) for one in it.found)
    ),
    rf"No file that is clearly smaller or faster {_L}\.": lambda it, _: (
        not any(it.smaller(one) or it.faster(one) for one in it.within)
    ),
    rf"No file that {_L} is clearly better than the original in all that counts\.": lambda it, _: all(
        it.is_dominated(one) for one in it.within if it.wanted(one)
    ),
    rf"No file that {_L} is clearly faster; those that are smaller were measured to take longer\.": lambda it, _: (
        not any(it.faster(one) or (it.smaller(one) and time(one) <= 1) for one in it.within)
    ),
    rf"No file that {_L} is clearly smaller; those that are faster are larger\.": lambda it, _: (
        not any(it.smaller(one) or (it.faster(one) and size(one) <= it.size) for one in it.within)
    ),
}


def check_sentence(it: Checked) -> None:
    """Fail where the reason claims what the files do not hold."""
    images = max((one.images for one in it.found), default=IMAGES)
    count = "1 file was" if len(it.apart) == 1 else f"{len(it.apart)} files were"
    apart = f" {count} measured on other images, and not compared." if it.apart else ""
    assert it.answer.reason.endswith(apart)
    reason, _, few = it.answer.reason.removesuffix(apart).partition(f" {images} images cannot show losses under about ")
    reason, proven, more = reason.partition(" That is not certain:")
    reason, plain, _ = reason.partition(" New images may lose more.")
    matches = [(claim, found) for text, claim in CLAIMS.items() if (found := re.fullmatch(text, reason))]
    assert len(matches) == 1, it.answer.reason
    claim, found = matches[0]
    assert claim(it, found), it.answer.reason
    most = found.groupdict().get("most")
    assert not most or most == METRICS["top1"].limit_text(it.tolerance)
    unseen = round(discordant_interval(0, 0, images)[1], 3)  # the end of the interval beside it
    is_hidden = bool(it.found) and it.promise is None and unseen > it.tolerance
    assert few == (f"{METRICS['top1'].change_text(unseen)}." if is_hidden else "")
    chosen = it.answer.choice
    may_lose = chosen is not None and it.promise is None and not chosen.bound <= it.tolerance
    assert bool(plain or more) is (may_lose and not is_hidden)
    assert more in ("", " new images may lose more.")
    assert bool(proven) is ("was measured to lose" in reason and chosen is not None and (may_lose or is_hidden))


def check_choice(it: Checked) -> None:
    answer = it.answer
    if answer.choice is None:
        assert not any(it.wanted(one) and not it.is_dominated(one) for one in it.within)
        assert answer.headline == ("No schedule to take" if it.goal == "targets" else "Keep the original")
        return
    assert it.choice in it.within
    assert it.wanted(it.choice)
    assert not it.is_dominated(it.choice)
    if it.goal == "targets":
        assert answer.headline.startswith(
            f"Targets that save {100 * (1 - left(it.choice)):.0f} % of the weights' size · "
        )
        return
    size_text = bytes_size(size(it.choice))
    before = bytes_size(it.size)
    assert answer.headline.startswith((f"{before} → {size_text} · ", f"{size_text}, as before · "))
    ends = it.choice.figures.time_ratio
    is_known = ends.high <= 1.5 * ends.low
    assert f"{time(it.choice):.2f} × the time ({ends.low:.2f} to {ends.high:.2f})" in answer.headline
    assert is_known is not (", while the computer was busy" in answer.headline)


def check_images(it: Checked) -> None:
    """Fail unless files are compared on the same images, and no file to take of others is better by the goal."""
    if it.answer.choice is None:
        assert not it.apart
        return
    assert len({one.images for one in it.found}) == 1
    if it.promise is None and it.apart:  # whose tests are shared by all files
        other = decision(it.apart, it.goal, it.tolerance).choice
        assert other is None or decision([it.choice, other], it.goal, it.tolerance).choice.file == it.choice.file


def check_alternatives(it: Checked) -> None:
    for file in _alternatives(it.answer):
        own = next(each for each in it.found if each.file == file)
        assert own in it.within
        chosen_is_faster = it.answer.choice is not None and it.faster(it.choice)
        assert it.faster(own) or (it.smaller(own) and not (it.goal == "faster" and chosen_is_faster))
        assert not any(beats(other, own) for other in it.within)
    assert set(it.answer.standings) == {one.file for one in (*it.found, *it.apart)}


def check(found: list[Candidate], goal: Goal, tolerances: tuple[float, float], promised: bool, order: str) -> None:
    strict, loose = sorted(tolerances)
    for tolerance in {strict, loose}:
        it = Checked(found, goal, tolerance, Promise(most=tolerance) if promised and tolerance else None)
        check_sentence(it)
        check_choice(it)
        check_images(it)
        check_alternatives(it)
    arranged = {"reversed": found[::-1], "sorted": sorted(found, key=size), "as it is": found}[order]
    first, again = decision(found, goal, strict), decision(arranged, goal, strict)
    assert _named(first) == _named(again)
    assert first.reason == again.reason
    looser = decision(found, goal, loose)
    if looser.choice is None:
        assert first.choice is None
    elif first.choice is not None:
        assert loss(first.choice) <= loss(looser.choice)


def _named(answer: Decision) -> tuple[str, ...]:
    chosen = answer.choice.file if answer.choice else ""
    return chosen, *_alternatives(answer)


def _alternatives(answer: Decision) -> list[str]:
    return sorted(file for file, standing in answer.standings.items() if standing == "alternative")


@given(
    found=files,
    goal=st.sampled_from(GOALS),
    tolerances=st.tuples(st.sampled_from(TOLERANCES), st.sampled_from(TOLERANCES)),
    promised=st.booleans(),
    order=st.sampled_from(["as it is", "reversed", "sorted"]),
)
@settings(max_examples=5_000 if cases.NIGHTLY else 50, derandomize=True)
def test_no_decision_is_false_dominated_or_ambiguous(found, goal, tolerances, promised, order) -> None:
    check(found, goal, tolerances, promised, order)
