"""A compression that is added from outside, by its folder and one line, works from the analysis to the pages."""

import argparse
from collections.abc import Iterator

import pytest
import streamlit as st
import torch
from safetensors.torch import load_file
from streamlit.testing.v1 import AppTest

from senseapp import descriptions
from senseapp.app.common import backend as ui_backend
from senseapp.cli import analyze
from senseapp.cli.compression_arguments import config_from
from senseapp.core.codec import dumps, loads
from senseapp.core.errors import InvalidSchedule, InvalidSpec
from senseapp.formats.plain import read_schedule
from senseapp.formats.registry import FORMATS
from senseapp.records.headline import headline
from senseapp.records.jobs import RunState
from senseapp.records.schedule import ResourceBudget
from senseapp.records.spec import RunSpec, SensitivitySpec
from senseapp.server.backend import Backend
from senseapp.server.outputs import default_targets
from senseapp.server.run_tasks import Verification
from senseapp.server.service import Service
from senseapp.solve.methods import make_schedule
from tests.pages.conftest import APP, open_page, wait_for_card
from tests.rounding import ROUNDING, RoundingConfig

SETTINGS = SensitivitySpec(compression=RoundingConfig(), levels=(8, 4, 2, 1), num_samples=32, metric="kl")
BITS = ResourceBudget(kind="bits", target=3.0)


@pytest.fixture(scope="module", autouse=True)
def registered() -> Iterator[None]:
    descriptions.COMPRESSIONS.register(ROUNDING)
    yield
    del descriptions.COMPRESSIONS[ROUNDING.name]


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    backend = Backend(tmp_path_factory.mktemp("home"), workers=0)
    yield Service(backend)
    backend.close()


@pytest.fixture(scope="module")
def run_id(service: Service) -> str:
    run = service.start(RunSpec(sensitivity=SETTINGS))
    assert service._backend.runner.run_next()
    assert service.run(run).state is RunState.DONE
    return run


@pytest.fixture
def app(service: Service, monkeypatch: pytest.MonkeyPatch) -> AppTest:
    st.cache_resource.clear()
    monkeypatch.setattr(ui_backend, "service", lambda: service)
    monkeypatch.setattr(ui_backend, "_AFTER_PAINT_SECONDS", 0.0)
    return AppTest.from_file(APP, default_timeout=60)


def test_its_settings_are_checked_and_kept() -> None:
    spec = RunSpec(sensitivity=SETTINGS)
    assert loads(dumps(spec), RunSpec) == spec
    with pytest.raises(InvalidSpec, match="Rounding mode must be one of nearest, down, got 'up'"):
        RoundingConfig(mode="up")
    with pytest.raises(InvalidSpec, match="A rounding level must be a whole number of bits from 1 to 12, got 13"):
        SensitivitySpec(compression=RoundingConfig(), levels=(13,))


def test_the_analysis_measures_it(service: Service, run_id: str) -> None:
    result = service.result(run_id)
    for layer in {item.layer for item in result.measurements}:
        damage = [item.change("kl").delta for item in result.measurements if item.layer == layer]
        assert 0 <= damage[0] < damage[-1]  # eight digits, and one
    assert "bits" in headline(result)
    assert set(default_targets(result).values()) <= set(range(1, 33))


def test_a_schedule_is_solved_written_and_read_back(service: Service, run_id: str) -> None:
    result = service.result(run_id)
    schedule = make_schedule(result, budget=BITS)
    assert schedule.achieved["bits"] <= BITS.target
    assert {entry.compression for entry in schedule.entries} == {"rounding"}
    text = FORMATS["csv"].write(schedule, result.profile)
    assert all(f",rounding,{entry.level},bits," in text for entry in schedule.entries)
    assert read_schedule(text, result.profile).entries == schedule.entries
    with pytest.raises(InvalidSchedule, match="but this schedule contains rounding"):
        FORMATS["nni3"].write(schedule, result.profile)


def test_other_methods_do_what_its_scale_allows(service: Service, run_id: str) -> None:
    result = service.result(run_id)
    uniform = make_schedule(result, budget=BITS, method="uniform")
    assert {entry.level for entry in uniform.entries} == {3.0}
    with pytest.raises(InvalidSpec, match="For rounding choose the optimal method"):
        make_schedule(result, budget=BITS, method="gamma")


def test_a_schedule_is_proven(service: Service, run_id: str) -> None:
    result = service.result(run_id)
    schedule = make_schedule(result, budget=BITS)
    proof = Verification(run_id=run_id, schedule=schedule, repair=False)
    service.work.start(proof)
    assert service._backend.runner.run_next()
    validation = service.work.outcome(proof)
    assert validation is not None
    assert validation.uniform
    weights = load_file(service.work.compressed_model(proof)[0])
    for entry in schedule.entries:
        kept = torch.frexp(weights[result.profile.layer(entry.layer).parameter]).mantissa * 2**entry.level
        assert torch.equal(kept, kept.round())


def test_the_command_line_offers_it() -> None:
    parser = argparse.ArgumentParser()
    analyze.add_arguments(parser)
    chosen = ["--compression", "rounding", "--levels", "8,2", "--compression-mode", "down"]
    arguments = parser.parse_args(["--model", "demo", "--data", "demo", "--out", "out", *chosen])
    assert config_from(arguments, RoundingConfig()) == RoundingConfig(mode="down")


def test_the_analyze_page_offers_it(app: AppTest) -> None:
    open_page(app, "pages/analyze.py")
    wait_for_card(app)
    assert not app.exception
    app.radio(key="analyze.compression.kind").set_value("rounding").run()
    assert not app.exception
    assert any(box.label == "Direction" and box.options == ["To the nearest", "Towards zero"] for box in app.selectbox)


@pytest.mark.parametrize("page", ["pages/results.py", "pages/targets.py"])
def test_the_pages_of_a_run_open(app: AppTest, run_id: str, page: str) -> None:
    open_page(app, page, run=run_id)
    assert not app.exception
    assert not app.error, [each.value for each in app.error]
