"""The decision on named sets of files: which is taken, and the sentence that says why."""

from dataclasses import replace

import pytest

from senseapp.prove.decision import decision, dominates, usual_decision
from senseapp.records.candidate import Candidate
from senseapp.records.deployment import Median
from senseapp.records.promise import Promise
from senseapp.records.schedule import Schedule
from tests.deployments import a_candidate, a_counted_change, a_judged_candidate, some_figures

ORIGINAL = some_figures(0.010, 1.0, 903_000)
SCHEDULE = Schedule(model="net", method="optimal", entries=(), achieved={"bytes": 0.5})


def a_file(kilobytes: int, share: float = 1.0, worse: int = 0, *, form: str = "int8", saved: float = 0.0) -> Candidate:
    """Return a file with so many of 500 right answers lost."""
    schedule = replace(SCHEDULE, achieved={"bytes": saved}) if saved else None
    found = a_candidate(
        form, size=1000 * kilobytes, share=share, schedule=schedule, original=ORIGINAL, metric="top1", tried=1
    )
    changes = (a_counted_change(worse, 500, metric="top1"),)
    return replace(found, figures=replace(found.figures, changes=changes))


SMALL = a_file(306)
QUICK = a_file(311, 0.63)
PACKED = a_file(201, form="small", saved=0.5)
LOSSY = a_file(250, 0.5, 15)
MILD = a_file(320, 0.95, 2)
PLAIN = a_file(892, form="weights", saved=0.5)
STRONG = a_file(893, form="weights", saved=0.8, worse=15)
LARGER = a_file(950, 0.5)
SLOWER = a_file(300, 2.0)
SMALL_AND_AS_FAST = a_file(300, 1.0)


def timed(one: Candidate, low: float, high: float) -> Candidate:
    ratio = replace(one.figures.time_ratio, low=low, high=high)
    return replace(one, figures=replace(one.figures, time_ratio=ratio))


UNSURE = timed(a_file(304, 0.66), 0.55, 0.7)

FEW, ENOUGH = (
    replace(SMALL, figures=replace(SMALL.figures, changes=(a_counted_change(0, images, metric="top1"),)))
    for images in (240, 269)
)
CASES = {
    "nothing measured": ([], "smaller", 0.01, None, "No file has been measured yet."),
    "hardly smaller, twice as fast, as right": (
        *([SMALL, QUICK], "smaller", 0.01, QUICK),
        "No other file that runs and was measured to lose at most 1 point is clearly smaller (5 % or more).",
    ),
    "hardly smaller: one takes longer, one loses more": (
        *([SMALL, a_file(305, 0.63, 100), QUICK], "smaller", 0.3, QUICK),
        "No other file that runs and was measured to lose at most 30 points is clearly smaller (5 % or more).",
    ),
    "about as small and quicker, though not beyond noise": (
        *([a_file(300, 0.65), a_file(305, 0.6), UNSURE], "smaller", 0.01, a_file(305, 0.6)),
        "No other file that runs and was measured to lose at most 1 point is clearly smaller (5 % or more).",
    ),
    "as fast within noise, and smaller": (
        *([timed(a_file(307, 0.71), 0.63, 0.81), timed(a_file(240, 0.74), 0.65, 0.84)], "faster", 0.01),
        *(a_file(240), "No other file that runs and was measured to lose at most 1 point is clearly faster."),
    ),
    "as small and as fast within noise, and safer": (
        *([timed(a_file(302, 0.4, 4), 0.3, 0.6), timed(a_file(300, 0.5), 0.3, 0.6)], "smaller", 0.3, a_file(300)),
        "It is the smallest file that runs and was measured to lose at most 30 points.",
    ),
    "packed weights beside a file that runs": (
        *([PACKED, SMALL], "smaller", 0.01, SMALL),
        "It is the smallest file that runs and was measured to lose at most 1 point.",
    ),
    "packed weights alone": (
        *([PACKED], "smaller", 0.01, PACKED),
        "It is the smallest file of weights that was measured to lose at most 1 point.",
    ),
    "one of two is within": (
        *([LOSSY, SMALL], "smaller", 0.01, SMALL),
        "It is the smallest file that runs and was measured to lose at most 1 point.",
    ),
    "the smallest loses too much for a stricter tolerance": (
        *([MILD, a_file(500)], "smaller", 0.002, a_file(500)),
        "It is the smallest file that runs and was measured to lose at most 0.2 points. That is not certain: 500 "
        "images cannot show losses under about 0.6 points.",
    ),
    "what images cannot show is what their interval leaves open": (
        *([FEW], "smaller", 0.01, FEW),
        "It is the smallest file that runs and was measured to lose at most 1 point. That is not certain: 240 "
        "images cannot show losses under about 1.1 points.",
    ),
    "an interval that ends at the tolerance": (
        *([ENOUGH], "smaller", 0.01, ENOUGH),
        "It is the smallest file that runs and was measured to lose at most 1 point. That is not certain: new images "
        "may lose more.",
    ),
    "none is within": (
        *([LOSSY], "smaller", 0.01, None),
        "No file that is clearly smaller or faster was measured to lose at most 1 point.",
    ),
    "none pays": ([a_file(900)], "smaller", 0.01, None, "No measured file is clearly smaller or faster."),
    "only faster": (
        *([a_file(903, 0.5)], "smaller", 0.01, a_file(903, 0.5)),
        "No file that was measured to lose at most 1 point is clearly smaller; this one is faster.",
    ),
    "faster but larger": (
        *([LARGER], "smaller", 0.01, None),
        "No file that was measured to lose at most 1 point is clearly smaller; those that are faster are larger.",
    ),
    "the fastest": (
        *([SMALL, QUICK, LARGER], "faster", 0.01, LARGER),
        "It is the fastest file that runs and was measured to lose at most 1 point.",
    ),
    "only smaller, as fast": (
        *([SMALL_AND_AS_FAST], "faster", 0.01, SMALL_AND_AS_FAST),
        "No file that was measured to lose at most 1 point is clearly faster; this one takes about as long and is "
        "smaller.",
    ),
    "as fast: the one that loses less": (
        *([a_file(298, 0.99, 1), a_file(300, 1.0), a_file(301, 1.01, 2)], "faster", 0.01, a_file(300, 1.0)),
        "No file that was measured to lose at most 1 point is clearly faster; this one takes about as long and is "
        "smaller.",
    ),
    "only smaller, slower": (
        *([SLOWER], "faster", 0.01, None),
        "No file that was measured to lose at most 1 point is clearly faster; those that are smaller were measured to "
        "take longer.",
    ),
    "targets": (
        *([SMALL, PLAIN, PACKED, STRONG], "targets", 0.01, PLAIN),
        "It is the strongest tested schedule that was measured to lose at most 1 point.",
    ),
    "stronger targets lose clearly more": (
        *([PLAIN, STRONG], "targets", 0.05, STRONG),
        "It is the strongest tested schedule that was measured to lose at most 5 points.",
    ),
    "targets without a schedule": ([SMALL], "targets", 0.01, None, "No schedule has been tested yet."),
    "no schedule within": ([STRONG], "targets", 0.01, None, "No tested schedule was measured to lose at most 1 point."),
    "only to look": (
        *([SMALL, LOSSY], "look", 0.01, SMALL),
        "It is the smallest file that runs and was measured to lose at most 1 point.",
    ),
}


@pytest.mark.parametrize(("files", "goal", "tolerance", "choice", "reason"), CASES.values(), ids=CASES)
def test_named_cases(files, goal, tolerance, choice, reason) -> None:
    answer = decision(files, goal, tolerance)
    assert answer.reason == reason
    assert (answer.choice and answer.choice.file) == (choice and choice.file)


def test_the_files_that_a_bound_counts_are_said_beside_it() -> None:
    harmful, good = (a_judged_candidate(lost, metric="top1", size=size) for lost, size in ((90, 1_200), (4, 1_000)))
    alone, both = (decision(files, "smaller", 0.05, Promise(most=0.05)) for files in ([good], [harmful, good]))
    assert alone.choice == both.choice == good
    assert alone.bounds[good.file] < both.bounds[good.file]
    assert both.evidence.endswith(
        "The bounds of all 2 files and variants tested on these images hold together for this "
        "promise: with another limit they differ."
    )
    assert "tried" not in alone.evidence + decision([harmful, good], "smaller", 0.05).evidence


def test_a_promise_that_none_keeps_is_said() -> None:
    answer = decision([a_judged_candidate(4, metric="top1")], "smaller", 0.01, Promise(most=0.01))
    assert list(answer.standings.values()) == ["not shown"]
    assert answer.choice is None
    assert answer.reason == (
        "No file that is clearly smaller or faster is shown to lose at most 1 point, with 95 % certainty."
    )


def test_a_file_is_dominated_by_one_that_is_clearly_better_in_one_and_no_worse_beyond_noise() -> None:
    assert dominates(QUICK, SMALL)
    assert not dominates(SMALL, QUICK)
    assert not dominates(QUICK, QUICK)
    assert not dominates(a_file(330, 0.63), SMALL)  # 8 % larger
    assert not dominates(a_file(311, 0.63, 1), SMALL)  # loses more
    assert not dominates(a_file(305), SMALL)  # no clear difference
    assert not dominates(a_file(311, 0.975), SMALL)
    assert not dominates(a_file(100, 0.5, form="weights"), SMALL)  # another program reads it
    assert dominates(SMALL, a_file(307, 1.0, 100))
    wide = replace(QUICK.figures, time_ratio=Median(value=0.63, low=0.5, high=1.1))
    assert not dominates(replace(QUICK, figures=wide), SMALL)


def test_every_file_has_a_standing() -> None:
    answer = usual_decision([QUICK, SMALL, LOSSY, a_file(905), a_file(600, 0.4)], "smaller")
    assert list(answer.standings.values()) == ["chosen", "dominated", "loses too much", "no gain", "alternative"]
    assert answer.headline == QUICK.headline
    assert answer.headline.startswith("903 kB → 311 kB · 0.63 × the time (0.62 to 0.64) · 100 of 100 answers right")


def test_targets_say_of_what_they_save_and_what_else_keeps_the_loss() -> None:
    answer = decision([SMALL, PLAIN, STRONG], "targets", 0.01)
    assert answer.headline.startswith("Targets that save 50 % of the weights' size · ")
    assert answer.evidence.startswith("Answers measured with these targets in PyTorch weights.")
    none = decision([SMALL, STRONG], "targets", 0.01)
    assert none.headline == "No schedule to take"
    assert none.reason == (
        "No tested schedule was measured to lose at most 1 point; a file without a schedule was: .onnx file in 8-bit "
        "numbers."
    )


def on_images(one: Candidate, images: int, worse: int = 0) -> Candidate:
    return replace(one, figures=replace(one.figures, changes=(a_counted_change(worse, images, metric="top1"),)))


def test_files_are_compared_on_the_same_images() -> None:
    unseen = on_images(a_file(330), 60)
    own = [replace(on_images(one, 200), held_out=False) for one in (QUICK, a_file(310, 0.9))]
    answer = decision([unseen, *own], "smaller", 0.01)
    assert answer.choice == own[0]
    assert answer.standings[unseen.file] == "other images"
    assert answer.compared([unseen, *own]) == tuple(own)
    assert answer.reason.endswith(
        "200 images cannot show losses under about 1.4 points. 1 file was measured on other images, and not compared."
    )
    assert dominates(own[0], own[1])
    assert dominates(own[0], replace(own[1], held_out=True))  # on the same 200, which a schedule has seen
    assert not dominates(own[0], on_images(own[1], 60))
    # Where none of these is worth it, the file of the other images is still found, with what those can show.
    answer = decision([unseen, replace(on_images(QUICK, 200, 20), held_out=False)], "smaller", 0.01)
    assert answer.choice == unseen
    assert "60 images cannot show losses under about 4.5 points" in answer.reason
    assert unseen.interval_text == "95.5 to 100"


def test_a_faster_file_is_one_that_is_quicker_beyond_noise() -> None:
    noisy = replace(SLOWER, figures=replace(SLOWER.figures, time_ratio=Median(value=14.94, low=0.18, high=26.03)))
    answer = decision([noisy, QUICK, a_file(200, 1.0)], "faster", 0.01)
    assert answer.choice == QUICK
    assert [*answer.standings.values()] == ["not faster", "chosen", "not faster"]
    assert decision([noisy, QUICK], "smaller", 0.01).choice == noisy


def test_a_file_that_runs_comes_before_weights_on_other_images() -> None:
    runs, packed = on_images(SMALL, 60), replace(on_images(PACKED, 200), held_out=False)
    assert decision([runs, packed], "smaller", 0.05).choice.file == runs.file


def test_of_files_of_one_size_the_same_is_named_in_any_order() -> None:
    pair = [a_file(201, 0.36, form="mixed"), replace(a_file(201, 0.36), file=f"deployed-{'1' * 16}.onnx")]
    assert decision(pair, "targets", 0.01).reason == decision(pair[::-1], "targets", 0.01).reason
