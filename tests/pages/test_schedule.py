"""The Schedule page: sliders, bars, figures and target files."""

import re

import pandas as pd
import pytest
from streamlit.testing.v1 import AppTest

from senseapp.app.common.state import LayerEdits, edits_key
from senseapp.compressions import PruningConfig, QuantizationConfig
from senseapp.core.errors import UnknownModel
from senseapp.formats.registry import FORMATS
from senseapp.records.jobs import RunState
from senseapp.records.profile import CoupledAxis, CoupledGroup
from senseapp.records.schedule import Limits, ResourceBudget, Schedule, StrongestFound, TriedTarget
from senseapp.records.spec import RunSpec, SensitivitySpec
from senseapp.server.backend import Backend
from senseapp.server.finished_runs import Work
from senseapp.server.run_tasks import DropLimit, StrongestSearch
from senseapp.server.service import Service
from senseapp.solve import trade_off
from senseapp.solve.methods import make_schedule
from senseapp.views.frames.files import OURS, PROPORTIONAL, UNIFORM
from tests.cases import first_of
from tests.pages.conftest import finish, open_page, texts, wait_for_card
from tests.pages.records import NAMES, change

PAGE = "pages/targets.py"


@pytest.fixture
def schedule(app: AppTest, finished_run: str) -> AppTest:
    open_page(app, PAGE, run=finished_run)
    assert not app.exception
    return app


def preview(app: AppTest) -> str:
    """The first lines of the file; above them stand those that apply it."""
    return str(app.code[1].value)


def test_the_target_moves_the_figures_at_once_and_the_classic_rule_has_a_gamma(schedule, finished_run) -> None:
    assert "100 % → 49" in texts(schedule)
    assert "A starting point, not a recommendation: move the target to what you need." in texts(schedule)
    schedule.slider(key=f"schedule.target.{finished_run}").set_value(70).run()
    assert "100 % → 29" in texts(schedule)
    assert "Predicted changed answers" in texts(schedule)
    assert re.search(r"about \d+ of 100 answers", texts(schedule))
    assert "schedule.gamma" not in " ".join(slider.key for slider in schedule.slider)
    schedule.button_group(key=f"choose.{finished_run}").set_value("gamma").run()
    assert schedule.slider(key=f"schedule.gamma.{finished_run}").value == 1.5
    assert '"method": "gamma"' in preview(schedule)


@pytest.mark.parametrize("name", first_of(["yaml", "json", "csv"]))
def test_each_format_says_who_reads_it_and_shows_its_first_lines(schedule, finished_run, name: str) -> None:
    schedule.selectbox(key=f"format.{finished_run}").set_value(name).run()
    assert FORMATS[name].reader in texts(schedule)
    file = f"digits_zeros-schedule{FORMATS[name].suffix}"
    usage = next(block.value for block in schedule.code if file in block.value)
    assert usage == FORMATS[name].usage.replace("FILE", file).replace("RUN", finished_run)
    assert "layer" in preview(schedule)
    labels = [button.label for button in schedule.get("download_button")]
    assert {f"Download {FORMATS[name].title}", "Download every format (zip)", "Download report"} <= set(labels)


def test_bits_have_an_average_and_limits_of_their_own(app: AppTest, service: Service, backend: Backend) -> None:
    spec = RunSpec(sensitivity=SensitivitySpec(compression=QuantizationConfig(), levels=(8, 4, 2)))
    run_id = finish(service, backend, spec)
    open_page(app, PAGE, run=run_id)
    assert "32 → 4.00" in texts(app) or "32 → 3." in texts(app)
    assert "What do fewer bits cost?" in texts(app)
    app.slider(key=f"schedule.bits.{run_id}").set_value(6.0).run()
    assert not app.exception
    assert "32 → 4.00" not in texts(app)


def edit(app: AppTest, run_id: str, **edits: dict[str, object]) -> None:
    """Set single layers, as the table would."""
    app.session_state[edits_key(run_id)] = LayerEdits(**edits)
    app.run()


def test_the_nearest_target_can_be_taken(schedule: AppTest, finished_run: str) -> None:
    schedule.slider(key=f"schedule.limits.{finished_run}").set_value((0, 40)).run()
    assert "The nearest target is" in schedule.error[0].value
    schedule.button(key=f"schedule.nearest.{finished_run}").click().run()
    assert 35 < schedule.slider(key=f"schedule.target.{finished_run}").value < 50
    assert not schedule.error


def test_locked_layers_keep_their_level_and_the_rest_is_solved_again_or_the_budget_said_to_be_missed(
    schedule: AppTest, finished_run: str
) -> None:
    before = amounts(schedule)
    edit(schedule, finished_run, fixed={NAMES[1]: 0.05}, bounds={NAMES[2]: (None, 0.5)})
    after = amounts(schedule)
    assert after[NAMES[1]] == 5
    assert after[NAMES[2]] <= 50
    assert sum(after[name] for name in NAMES[3:]) > sum(before[name] for name in NAMES[3:])
    assert "100 % → 49" in texts(schedule) or "100 % → 50.0" in texts(schedule)
    schedule.button(key=f"schedule.unlock.{finished_run}").click().run()
    assert amounts(schedule) == before
    edit(schedule, finished_run, fixed=dict.fromkeys(NAMES, 0.1))
    assert "with these limits and fixed layers" in schedule.error[0].value
    assert amounts(schedule)["conv1"] == 10
    schedule.button(key=f"schedule.unlock.{finished_run}").click().run()
    assert not schedule.error


def amounts(app: AppTest) -> dict[str, float]:
    """Return what the table of layers shows."""
    return shown_layers(app)["amount"].to_dict()


def shown_layers(app: AppTest) -> pd.DataFrame:
    rows = app.get("arrow_data_frame")[-1].value if app.get("arrow_data_frame") else app.dataframe[-1].value
    return rows.set_index("layer")


def test_spared_layers_are_named_with_the_reason_and_the_trade_off_shows_every_method(schedule, finished_run) -> None:
    rows = shown_layers(schedule)
    assert rows.loc["layer2.0.conv1", "reason"] == "too fragile"
    assert all(rows.loc[rows["amount"] == 0, "reason"])
    assert "Too fragile: layer2.0.conv1." in texts(schedule)
    chart = next(spec for spec in specs(schedule) if PROPORTIONAL in spec)
    assert OURS in chart
    assert UNIFORM in chart
    assert '"pick"' in chart


def specs(app: AppTest) -> list[str]:
    return [element.proto.spec for element in app.get("vega_lite_chart")]


def test_the_largest_loss_is_searched_in_the_background(schedule, finished_run, service, backend) -> None:
    schedule.button_group(key=f"choose.{finished_run}").set_value("strongest").run()
    assert not schedule.exception
    schedule.number_input(key=f"schedule.drop.top1.{finished_run}").set_value(2.0).run()
    limits = Limits(min_level=0.0, max_level=0.9)
    drop = DropLimit(kind="params", allowed_drop=0.02, metric="top1", repair=True, limits=limits)
    assert service.work.progress(StrongestSearch(run_id=finished_run, drop=drop)) is None
    schedule.button(key=f"schedule.search.{finished_run}").click().run()
    assert service.work.progress(StrongestSearch(run_id=finished_run, drop=drop)).state is RunState.QUEUED
    keep_found(service, backend, finished_run, drop)
    schedule.run()
    assert "loss of right answers 1.5 points (1.0 to 2.0) measured on 512 images" in schedule.success[0].value
    assert '"target": 0.6' in preview(schedule)


def keep_found(service: Service, backend: Backend, run_id: str, drop: DropLimit) -> None:
    made = make_schedule(service.result(run_id), budget=ResourceBudget(kind="params", target=0.6))
    tried = (
        TriedTarget(figure=0.7, changes=(change("top1", 0.03, 0.005),)),
        TriedTarget(figure=0.6, changes=(change("top1", 0.015, 0.005),), repaired=True),
    )
    found = StrongestFound(schedule=made, allowed_drop=drop.allowed_drop, repaired=True, tried=tried)
    backend.store.folder(run_id).save(StrongestSearch(run_id=run_id, drop=drop).key, found)


def test_zeros_and_bits_are_combined_where_both_were_measured(app, finished_run, service, backend) -> None:
    open_page(app, PAGE, run=finished_run)
    assert not [box for box in app.selectbox if box.label == "Combine with"]
    spec = RunSpec(sensitivity=SensitivitySpec(compression=QuantizationConfig(), levels=(8, 4, 2)))
    bits, _ = (finish(service, backend, spec) for _ in range(2))  # of one title
    app.run()
    partner = app.selectbox(key=f"schedule.partner.{finished_run}")
    assert len(set(partner.options)) == 3
    partner.set_value(bits).run()
    assert app.selectbox(key=f"schedule.partner.{finished_run}").value == bits
    assert not app.exception
    app.slider(key=f"schedule.target.{finished_run}").set_value(85).run()
    app.selectbox(key=f"format.{finished_run}").set_value("csv").run()
    assert {"sparsity", "quantization"} <= set(preview(app).replace("\n", ",").split(","))
    assert "Size left of the weights (%)" in "".join(specs(app))
    offered = app.selectbox(key=f"format.{finished_run}").options
    assert FORMATS["nni3"].title not in offered  # it holds one compression
    assert FORMATS["yaml"].title in offered


def test_pruning_meets_its_budget_once_it_is_known_what_shrinks_together(app, service, backend, monkeypatch) -> None:
    run_id = finish(
        service, backend, RunSpec(sensitivity=SensitivitySpec(compression=PruningConfig(), levels=(0.25, 0.5, 0.75)))
    )
    groups = tuple(
        CoupledGroup(layer=name, num_units=64, axes=(CoupledAxis(layer=name, axis="out", share=1.0),))
        for name in NAMES
        if name not in ("layer2.0.downsample.0",)
    )
    monkeypatch.setattr(service.work, "couplings", lambda _: groups)
    wait_for_card(open_page(app, PAGE, run=run_id))
    app.slider(key=f"schedule.target.{run_id}").set_value(30).run()
    assert not app.exception
    shown = re.search(r"100 % → (\d+\.\d) %", texts(app))
    assert shown is not None
    assert 68 < float(shown[1]) <= 70
    assert "is estimated; applying" not in texts(app)


def test_a_network_that_is_gone_leaves_estimates_and_says_so(app, service, backend, monkeypatch) -> None:
    def gone(_: str) -> None:
        raise UnknownModel("The checkpoint is gone.")

    spec = RunSpec(sensitivity=SensitivitySpec(compression=PruningConfig(), levels=(0.25, 0.5, 0.75)))
    run_id = finish(service, backend, spec)
    monkeypatch.setattr(service.work, "couplings", gone)
    wait_for_card(open_page(app, PAGE, run=run_id))
    assert "estimates: The checkpoint is gone." in app.info[0].value
    assert "is estimated; applying" in texts(app)


def test_a_schedule_file_is_shown_in_place_of_the_settings(schedule: AppTest, finished_run: str) -> None:
    schedule.selectbox(key=f"format.{finished_run}").set_value("csv").run()
    rows = preview(schedule).replace("\n…", "")
    assert "conv1,conv1,sparsity,75.0" in rows
    changed = rows.replace("conv1,conv1,sparsity,75.0", "conv1,conv1,sparsity,12.5")
    schedule.file_uploader[0].upload("mine.csv", changed.encode()).run()
    assert not schedule.exception
    assert "in place of the settings" in texts(schedule)
    assert "conv1,conv1,sparsity,12.5" in preview(schedule)
    assert not schedule.error


def test_a_run_of_very_many_layers_is_solved_elsewhere_without_a_trade_off(app, finished_run, monkeypatch) -> None:
    monkeypatch.setattr(trade_off, "_MANY_LAYERS", 1)
    asked: list[str] = []
    real = Work.solved

    def solved(one: Work, run_id: str, *rest: object, **more: object) -> Schedule:
        asked.append(run_id)
        return real(one, run_id, *rest, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(Work, "solved", solved)
    open_page(app, PAGE, run=finished_run)
    wait_for_card(app)
    assert not app.exception
    assert asked == [finished_run]
    assert "are too large for the trade-off here" in texts(app)
    assert "What does removing more cost?" not in texts(app)
    assert "How much of each layer is set to zero?" in " ".join(each.value for each in (*app.subheader, *app.markdown))
