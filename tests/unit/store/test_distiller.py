"""Distiller's sensitivity CSV: what is read, what is refused, and that ours reads back."""

import math
from dataclasses import replace

import pytest

from senseapp.compressions import QuantizationConfig
from senseapp.core.errors import InvalidFile, InvalidSpec, UnknownModel
from senseapp.core.markdown import as_written
from senseapp.networks.sources.load import load_model
from senseapp.records.headline import headline
from senseapp.records.measurement import LayerMeasurement, Status
from senseapp.records.schedule import ResourceBudget
from senseapp.records.spec import RunSpec, SensitivitySpec
from senseapp.solve.methods import make_schedule
from senseapp.store.distiller import can_be_distiller_csv, notes_on_names, read_distiller_csv, write_distiller_csv
from tests.distiller_tables import ROWS, TABLE, table
from tests.fake_session import a_change, a_measurement, a_profile, a_result

LAYERS = ["conv1", "layer1.0.conv1", "fc"]


@pytest.fixture
def imported():
    return read_distiller_csv(TABLE, title="resnet18")


def test_the_published_numbers_are_the_ones_shown(imported):
    assert [layer.name for layer in imported.profile.layers] == LAYERS
    assert imported.levels == (0.15, 0.5)
    assert imported.baseline == pytest.approx({"top1": 0.69758, "top5": 0.89078, "loss": 1.2514319637296152})
    worst = imported.ranked(0.5, "top1")[0]
    assert worst[0].layer == "conv1"
    assert worst[1].delta == pytest.approx(0.69758 - 0.4125)
    assert worst[0].change("loss").delta == pytest.approx(3.125 - 1.2514319637296152)
    assert worst[0].change("top5").value == pytest.approx(0.665)


def test_what_the_file_does_not_say_is_unknown_not_zero(imported):
    change = imported.measurements[0].changes[0]
    assert math.isnan(change.ci_low)
    assert math.isnan(change.ci_high)
    assert not change.has_interval
    assert (change.num_samples, imported.num_samples) == (0, 0)
    assert not imported.profile.sizes_known
    assert "intervals are unknown" in imported.notes[0]
    assert "sizes" in imported.notes[1]


def test_the_headline_claims_nothing_about_chance(imported):
    said = headline(imported)
    assert said.startswith("Most fragile: conv1 loses 28.5 points at 50 %.")
    assert "lose nothing measurable" not in said
    assert "No layer loses" not in said


def test_names_without_the_wrapper_and_other_parameters_are_kept():
    rows = [row.removeprefix("module.") for row in ROWS[:3]]
    lstm = [row.replace("conv1.weight", "rnn.weight_hh_l0") for row in rows]
    result = read_distiller_csv(table(*rows, *lstm))
    assert [layer.name for layer in result.profile.layers] == ["conv1", "rnn.weight_hh_l0"]


def test_a_model_whose_submodule_is_called_module_keeps_that_name():
    rows = [*ROWS[:3], *(row.replace("module.conv1", "conv0") for row in ROWS[:3])]
    assert [layer.name for layer in read_distiller_csv(table(*rows)).profile.layers] == ["module.conv1", "conv0"]


def test_filter_wise_tables_say_so():
    result = read_distiller_csv(TABLE, granularity="filter")
    assert result.spec.sensitivity.compression.granularity == "filter"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "empty"),
        ("\n\n", "empty"),
        (table(), "no rows"),
        (table("a,0,50,60", header="parameter,sparsity,top1,top5"), "lacks loss"),
        (table("a,b", header="name,level"), "lacks parameter, sparsity"),
        (
            table(ROWS[0], "module.conv1.weight,0.5,fifty,80,1"),
            "Line 3: top1 must be a finite number from 0 to 100, got 'fifty'",
        ),
        (table(ROWS[0], "module.conv1.weight,0.5,50"), "Line 3: top5 must be a finite number"),
        (table(ROWS[0], "module.conv1.weight,nan,50,60,1"), "finite"),
        (table(ROWS[0], "module.conv1.weight,0.5,inf,60,1"), "finite"),
        (
            table(ROWS[0], "module.conv1.weight,50,60,70,1"),
            r"sparsity must be a finite number from 0 to 0\.9999, got '50'",
        ),
        (table(ROWS[0], "module.conv1.weight,1.0,60,70,1"), r"from 0 to 0\.9999"),
        (table(ROWS[0], "module.conv1.weight,-0.1,60,70,1"), r"from 0 to 0\.9999"),
        (table(ROWS[0], "module.conv1.weight,0.5,160,70,1"), "from 0 to 100"),
        (table(ROWS[0], ROWS[1], ROWS[1]), "two rows at sparsity 0.15"),
        (table(ROWS[1], ROWS[2]), "no row at sparsity 0"),
        (table(*ROWS[:3], *ROWS[4:6]), "layer1.0.conv1 has no row at sparsity 0"),
        (table(ROWS[0]), "nothing was measured"),
        (table("a,0,0.69,0.89,1.2", "a,0.5,0.6,0.8,1.4"), "looks like fractions"),
        (table(",0,69,89,1.2"), "names no parameter"),
        ('parameter,sparsity,top1,top5,loss\n"a,0,1', "is not CSV"),
    ],
)
def test_bad_tables_are_refused_with_one_sentence(text, says):
    with pytest.raises(InvalidFile, match=says) as raised:
        read_distiller_csv(text)
    assert "\n" not in str(raised.value)


def test_an_infinite_loss_is_a_finding_not_an_error():
    result = read_distiller_csv(table(ROWS[0], "module.conv1.weight,0.9,0.1,0.5,inf"))
    assert result.measurements[0].change("loss").delta == math.inf


def test_a_model_gives_the_sizes():
    result = read_distiller_csv(TABLE, profile=a_profile(LAYERS))
    half = {item.layer: item.removed_params for item in result.at(0.5)}
    assert half == {"conv1": 50, "layer1.0.conv1": 100, "fc": 150}
    assert len(result.notes) == 1
    assert notes_on_names(result) == ""


def test_what_the_model_lacks_is_left_out_with_one_sentence():
    result = read_distiller_csv(TABLE, profile=a_profile(["stem", "fc"]))
    assert {item.layer for item in result.measurements} == {"fc"}
    assert notes_on_names(result) == result.notes[0]
    assert result.notes[0] == (
        "2 of the 3 parameters left out, as demo lacks them (conv1, layer1.0.conv1), where names such as stem were "
        "expected; if another model was measured, import the table again with that one."
    )
    assert make_schedule(result, budget=ResourceBudget(kind="macs", target=0.2)).achieved["macs"] >= 0.2
    one = read_distiller_csv(TABLE, profile=a_profile(LAYERS[1:]))
    assert notes_on_names(one).startswith("1 of the 3 parameters left out, as demo lacks them (conv1), where")


def test_a_model_with_none_of_the_names_is_refused():
    with pytest.raises(InvalidFile) as raised:
        read_distiller_csv(TABLE, profile=a_profile(["stem", "head", "tail"]))
    assert str(raised.value) == (
        "None of the 3 parameters is in demo: the table has conv1, layer1.0.conv1, fc, but names such as stem and head "
        "were expected; choose the model that was measured, or import without one."
    )


def test_many_strangers_are_counted_and_shown_without_markup():
    rows = [row.replace("conv1", f"x{index}[y](//z)") for index in range(4) for row in ROWS[:3]]
    note = notes_on_names(read_distiller_csv(table(*ROWS[:3], *rows), profile=a_profile(["conv1"])))
    assert " and 1 more)" in note
    assert "](" not in as_written(note)  # pages show every note this way


def test_the_weights_that_the_sizes_were_read_off_do_not_speak_for_the_figures():
    built = replace(a_profile(LAYERS), pretrained=False, notes=("Random weights: figures are indicative only.",))
    result = read_distiller_csv(TABLE, profile=built)
    assert result.profile.pretrained
    assert result.profile.notes == ()


@pytest.mark.parametrize(("method", "kind"), [("optimal", "params"), ("gamma", "macs"), ("uniform", "bytes")])
def test_schedules_count_layers_alike_where_sizes_are_unknown(imported, method, kind):
    target = 0.1 if kind == "bytes" else 0.3
    schedule = make_schedule(imported, budget=ResourceBudget(kind=kind, target=target), method=method)
    assert schedule.achieved[kind] >= target - 1e-9
    levels = [schedule.level_of(name) or 0.0 for name in LAYERS]
    assert schedule.achieved["params"] == pytest.approx(sum(levels) / 3)
    if method != "uniform":
        assert levels[0] < max(levels[1:])
    assert any("counts alike" in note for note in schedule.notes)


def test_the_network_of_an_import_cannot_be_loaded(imported):
    with pytest.raises(UnknownModel, match="imported as a table"):
        load_model(imported.spec.model)


def test_what_is_read_is_written_again(imported):
    again = read_distiller_csv(write_distiller_csv(imported), title="resnet18")
    for before, after in zip(imported.measurements, again.measurements, strict=True):
        assert before.key == after.key
        for old, new in zip(before.changes, after.changes, strict=True):
            assert (new.baseline, new.value) == pytest.approx((old.baseline, old.value), abs=1e-12)
    assert write_distiller_csv(again) == write_distiller_csv(imported)


def test_a_run_of_ours_is_written_in_distillers_words():
    changes = (a_change(0.03), a_change(0.01, metric="top5"), a_change(-0.5, metric="loss"), a_change(1, metric="kl"))
    group = a_measurement("stem", 0.25, changes=changes, members=("stem", "head"))
    lines = write_distiller_csv(a_result([group])).splitlines()
    assert lines == [
        "parameter,sparsity,top1,top5,loss",
        "module.stem.weight,0,98,98,0.98",
        "module.stem.weight,0.25,95,97,1.48",
        "module.head.weight,0,98,98,0.98",
        "module.head.weight,0.25,95,97,1.48",
    ]


def test_layers_without_figures_are_left_out():
    changes = tuple(a_change(0.03, metric=metric) for metric in ("top1", "top5", "loss"))
    good = a_measurement("stem", changes=changes)
    failed = LayerMeasurement(layer="head", level=0.5, status=Status.FAILED, reason="no")
    estimate = replace(a_measurement("stage.0.conv", changes=changes), estimated=True)
    text = write_distiller_csv(a_result([good, failed], estimates=(estimate,)))
    assert "stem" in text
    assert "head" not in text
    assert "stage" not in text


def test_runs_without_such_figures_are_refused():
    bits = RunSpec(sensitivity=SensitivitySpec(compression=QuantizationConfig(), levels=(4.0,)))
    changes = tuple(a_change(0.03, metric=metric) for metric in ("top1", "top5", "loss"))
    for result in (a_result([a_measurement()]), a_result([a_measurement(level=4.0, changes=changes)], spec=bits)):
        assert not can_be_distiller_csv(result)
        with pytest.raises(InvalidSpec, match="labelled images"):
            write_distiller_csv(result)
