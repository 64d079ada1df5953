"""One piece of work leaves something for the next, and nothing stays longer than it may."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from senseapp.compressions import QuantizationConfig
from senseapp.core.codec import dumps
from senseapp.core.process import PROCESS_CACHE, ProcessCache
from senseapp.measure.histograms import histogram_of
from senseapp.measure.session import Session
from senseapp.networks.sources.load import load_model
from senseapp.records.measurement import RunResult
from senseapp.records.spec import HistogramSpec, ModelSpec, RunSpec, SensitivitySpec

DEMO = RunSpec(
    sensitivity=SensitivitySpec(compression=QuantizationConfig(), levels=(4.0,), num_samples=24, mode="quick")
)


class Thing:
    """Something that can be gone."""


@pytest.fixture
def leftovers() -> Iterator[ProcessCache]:
    found = ProcessCache()
    found.keep()
    yield found
    found.clear()


@pytest.fixture
def kept() -> Iterator[ProcessCache]:
    """This process's own, as in a process that works for the app."""
    PROCESS_CACHE.keep()
    yield PROCESS_CACHE
    PROCESS_CACHE.clear()


@pytest.fixture(scope="module")
def result() -> RunResult:
    return Session.open(DEMO).result(())


def test_nothing_stays_unless_it_is_to_be_kept() -> None:
    leftovers = ProcessCache()
    leftovers.leave("a", Thing())
    assert leftovers.take("a") is None


def test_a_thing_is_taken_once_and_by_its_name(leftovers: ProcessCache) -> None:
    thing = Thing()
    leftovers.leave("a", thing)
    assert leftovers.take("a") is thing
    assert leftovers.take("a") is None


@pytest.mark.parametrize(
    "let_go",
    [lambda left: left.take("b"), lambda left: left.drop(), lambda left: left.clear()],
    ids=["other", "drop", "clear"],
)
def test_what_nobody_wants_is_let_go_of(leftovers: ProcessCache, let_go) -> None:
    thing = Thing()
    watched = weakref.ref(thing)
    leftovers.leave("a", thing)
    del thing
    let_go(leftovers)
    gc.collect()
    assert watched() is None
    assert leftovers.take("a") is None


def test_whoever_loads_a_network_finds_room(kept: ProcessCache) -> None:
    kept.leave("network", Thing())
    load_model(ModelSpec())
    assert kept.take("network") is None


@pytest.mark.slow
def test_histograms_after_each_other_load_once_and_say_the_same(kept: ProcessCache, result: RunResult) -> None:
    first, second = (layer.name for layer in result.profile.layers[:2])
    asked = [
        HistogramSpec(layer=second),
        HistogramSpec(layer=second, tensor="activations", per_channel=True),
        HistogramSpec(layer=first, fold=True),
        HistogramSpec(layer=second, tensor="activations", objective="loss"),
        HistogramSpec(layer=second),
        HistogramSpec(layer=second, num_images=16),
    ]
    loads = []
    found = []
    for spec in asked:
        phases: list[str] = []
        found.append(histogram_of(result, spec, progress=phases.append))
        loads.append("Loading the model" in phases)
    # Folding leaves another network, and fewer images are others.
    assert loads == [True, False, False, True, False, True]
    kept.clear()
    assert [dumps(each) for each in found] == [dumps(histogram_of(result, spec)) for spec in asked]  # NaN included


def test_what_failed_leaves_nothing(kept: ProcessCache, result: RunResult, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = HistogramSpec(layer=result.profile.layers[0].name)

    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("in the middle of a pass")

    with monkeypatch.context() as patch:
        patch.setattr("senseapp.measure.histograms.quantization_histograms", fail)
        with pytest.raises(RuntimeError, match="in the middle"):
            histogram_of(result, spec)
    phases: list[str] = []
    histogram_of(result, spec, progress=phases.append)
    assert "Loading the model" in phases
