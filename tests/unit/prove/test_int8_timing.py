"""Whether int8 pays: timed on a first file, and never offered as quicker where it is not."""

import random
from collections.abc import Iterator
from dataclasses import replace

import pytest
from torch import Tensor

from senseapp.compressions import QuantizationConfig
from senseapp.descriptions.runtimes import RUNTIMES
from senseapp.prove import int8_files, mixed_precision
from senseapp.prove.decision import decision, dominates
from senseapp.prove.deliver import runtime_candidates
from senseapp.prove.deploy import original_source
from senseapp.prove.file_times import time_int8
from senseapp.records.deployment import DeploySettings, Median, OperatorTime, operator_shares
from senseapp.views.words.wording import int8_text
from tests.deployments import a_candidate
from tests.small_evaluator import evaluator_of
from tests.small_models import images_for, small_network
from tests.toy_runtime import OPERATIONS, TOY, ToyRuntime


def test_operators_of_two_files_stand_side_by_side() -> None:
    before = [OperatorTime(kind="Conv", calls=3, seconds=3.0), OperatorTime(kind="Gelu", calls=1, seconds=0.5)]
    after = [OperatorTime(kind="QuantizeLinear", calls=2, seconds=4.0, is_border=True), replace(before[0], seconds=1.0)]
    found = operator_shares(before, after)
    assert [(each.kind, each.original_seconds, each.seconds) for each in found] == [
        ("QuantizeLinear", 0.0, 4.0),
        ("Conv", 3.0, 1.0),
        ("Gelu", 0.5, 0.0),
    ]
    assert [each.is_border for each in found] == [True, False, False]


# ---- never slower than float


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    RUNTIMES.register(TOY)
    yield
    RUNTIMES.pop(TOY.name, None)


def backwards(_: ToyRuntime, networks, images: Tensor, *, turns: int = 41) -> list[list[float]]:
    """Fewer bytes take longer: int8 does not pay."""
    return [[1 / network.num_bytes] * turns for network in networks]


@pytest.mark.slow
def test_a_first_file_says_what_int8_takes(toy: None, monkeypatch: pytest.MonkeyPatch) -> None:
    network = evaluator_of(small_network(), QuantizationConfig()).original_file(OPERATIONS)
    found = time_int8(OPERATIONS, network, [images_for(4).batch(0, 4)])
    assert found.ratio.value == found.ratio.low == found.ratio.high < 1
    monkeypatch.setattr(ToyRuntime, "times", backwards)
    slower = time_int8(OPERATIONS, network, [images_for(4).batch(0, 4)])
    assert slower.ratio.value == pytest.approx(1 / found.ratio.value)
    assert "do not pay" in int8_text(slower)


@pytest.mark.slow
def test_a_busy_moment_does_not_say_what_int8_takes(toy: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Float takes twice as long for a while, int8 no longer, as seen beside other machines on one processor."""
    evaluator = evaluator_of(small_network(), QuantizationConfig())
    moments = iter([(0.006, 0.02), (0.006, 0.02), (0.006, 0.01), (0.006, 0.02), (0.006, 0.01), (0.006, 0.01)])
    monkeypatch.setattr(ToyRuntime, "times", lambda *_, turns, **__: [[each] * turns for each in next(moments)])
    found = time_int8(OPERATIONS, evaluator.original_file(OPERATIONS), [images_for(4).batch(0, 4)])
    assert (found.ratio.value, found.ratio.low) == (0.6, 0.3)


@pytest.mark.slow
def test_int8_that_is_slower_is_no_file_that_is_as_quick_as_possible(
    toy: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = DeploySettings(kind="quickest", most_changed=0.9, runtime=TOY.name)
    evaluator = evaluator_of(small_network(), QuantizationConfig())
    source = original_source(evaluator, OPERATIONS)
    made = runtime_candidates(evaluator, source, settings, lambda form: f"deployed-{'0' * 16}.toy")
    assert [candidate.form for candidate, _ in made.files] == ["int8"]
    assert made.files[0][0].is_faster
    monkeypatch.setattr(ToyRuntime, "times", backwards)
    monkeypatch.setattr(int8_files, "search_mixed_precision", lambda *_: pytest.fail("No search where int8 is slower."))
    made = runtime_candidates(evaluator, source, settings, lambda form: f"deployed-{'0' * 16}.toy")
    assert made.files == ()
    assert made.notes == ("No file with int8 that is quicker than float changes as few answers as allowed.",)


@pytest.mark.slow
def test_a_search_makes_further_files_with_figures_of_their_own(toy: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mixed_precision, "_UNSEEN", 0.0)  # any damage is worth a part in float
    settings = DeploySettings(kind="mixed", most_time=1.3, runtime=TOY.name)
    evaluator = evaluator_of(small_network(), QuantizationConfig())
    source = original_source(evaluator, OPERATIONS)

    def name_of(what: str) -> str:
        return f"deployed-{what.encode().hex()[:16]:0<16}.toy"

    (alone,) = runtime_candidates(evaluator, source, settings, name_of, others=False).files
    made = runtime_candidates(evaluator, source, settings, name_of).files
    first, *others = (candidate for candidate, _ in made)
    assert first.file == alone[0].file
    assert others
    assert (
        len({candidate.file for candidate, _ in made}) == len({deployed.content for _, deployed in made}) == len(made)
    )
    for candidate, deployed in made:
        assert candidate.figures.file_bytes == len(deployed.content)
        assert candidate.deployment is not None
        assert candidate.deployment.figures["file"] == candidate.figures
        assert candidate.figures.time_ratio.low <= 1
    assert not any(dominates(candidate, other) for other in others for candidate, _ in made)


def test_none_of_a_hundred_slower_files_is_offered_as_quicker() -> None:
    chance = random.Random(0)
    for _ in range(100):
        files = []
        for form in ("int8", "mixed", "onnx"):
            ratio = chance.uniform(0.9, 2)
            low, high = ratio * chance.uniform(0.8, 1), max(1.0, ratio * chance.uniform(1, 1.2))
            made = a_candidate(form, lost=0.0)
            figures = replace(made.figures, time_ratio=Median(value=ratio, low=low, high=high))
            files.append(replace(made, figures=figures))
        standings = decision(files, "faster", 1.0).standings
        assert not any(each.is_faster for each in files if standings[each.file] in ("chosen", "alternative"))
