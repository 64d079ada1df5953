"""Numbers and words as people read them."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from senseapp.compressions import QuantizationConfig, SparsityConfig
from senseapp.descriptions import all_descriptions
from senseapp.metrics import METRICS, number_text
from senseapp.records.spec import DataSpec, ModelSpec, RunSpec, SensitivitySpec
from senseapp.views.words import format as fmt
from senseapp.views.words.wording import download_stem, provenance_text, run_title
from tests.pages.records import result


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (fmt.count(1_822_177_768, unit="multiplications"), "1.82 G multiplications"),
        (fmt.count(11_689_512), "11.7 M"),
        (fmt.count(999), "999"),
        (fmt.count(0), "0"),
        (fmt.bytes_size(44_700_000), "44.7 MB"),
        (fmt.bytes_size(25_600), "25.6 kB"),
        (fmt.bytes_size(12), "12 bytes"),
        (fmt.percent(0.5), "50 %"),
        (SparsityConfig.scale.text(0.29), "29 %"),
        (QuantizationConfig.scale.text(4.0), "4 bits"),
        (SparsityConfig.scale.texts((0.75, 0.25)), "25, 75 %"),
        (QuantizationConfig.scale.texts((2, 8, 4)), "8, 4, 2 bits"),
        (fmt.duration(0.42), "0.4 s"),
        (fmt.duration(40.2), "40 s"),
        (fmt.duration(130), "2 min 10 s"),
        (fmt.duration(120), "2 min"),
        (fmt.duration(3 * 3600 + 300), "3 h 5 min"),
        (fmt.about(3.1), "a few seconds"),
        (fmt.about(41.6), "about 42 s"),
        (fmt.about(95), "about 1 min 35 s"),
        (fmt.about(140), "about 2 min 30 s"),
        (fmt.about(190), "about 3 min"),
        (fmt.about(1253), "about 21 min"),
        (fmt.clock(7), "0:07"),
        (fmt.clock(3723), "1:02:03"),
        (fmt.age(100, 130), "just now"),
        (fmt.age(0, 7200), "2 h ago"),
        (fmt.age(0, 86400), "1 day ago"),
        (fmt.plural(1, "layer"), "1 layer"),
        (fmt.plural(1200, "layer"), "1,200 layers"),
        (fmt.shape((64, 3, 7, 7)), "64 × 3 × 7 × 7"),
        (fmt.shape(()), "–"),
        (METRICS["top1"].change_text(0.064), "6.4 points"),  # a loss is above zero in every metric
        (METRICS["kl"].change_text(0.064), "0.064"),
        (METRICS["top1"].change_text(-0.003), "−0.3 points"),
        (METRICS["sqnr"].change_text(0.0123), "0.012"),
        (METRICS["top1"].interval_text(0.02, 0.05), "2.0 to 5.0"),
        (METRICS["loss"].interval_text(-0.01, 0.05), "−0.010 to 0.050"),
        (METRICS["kl"].interval_text(0.0, 0.0001), "0 to < 0.001"),
    ],
)
def test_a_number_is_written_with_its_unit_and_the_right_digits(text: str, expected: str) -> None:
    assert text == expected


def test_a_long_name_is_cut_in_the_middle_and_keeps_both_ends() -> None:
    name = "encoder.layers.encoder_layer_11.self_attention.out_proj"
    cut = fmt.cut_middle(name, 24)
    assert len(cut) == 24
    assert name.startswith(cut.split("…")[0])
    assert name.endswith(cut.split("…")[1])


@pytest.mark.parametrize(
    ("value", "digits", "expected"),
    [
        (0.0, 3, "0"),
        (-0.0, 1, "0"),
        (0.00049, 3, "< 0.001"),
        (-0.00049, 3, "> −0.001"),
        (0.00051, 3, "0.001"),
        (0.04, 1, "< 0.1"),
        (-0.04, 1, "> −0.1"),
        (9.9996, 3, "10.000"),
        (12.34, 3, "12.3"),
        (99.94, 1, "99.9"),
        (133.0, 3, "133"),
        (float("inf"), 3, "∞"),
    ],
)
def test_no_number_that_is_not_zero_reads_as_zero(value: float, digits: int, expected: str) -> None:
    assert number_text(value, digits=digits) == expected


def test_charts_tables_and_the_command_line_call_a_loss_by_the_same_unit() -> None:
    for metric in METRICS.values():
        assert metric.change_unit in metric.axis
        assert metric.value_unit in metric.value_axis
        assert metric.change_unit in metric.change_text(0.5)
        assert metric.factor == (100 if metric.change_unit in ("points", "%") else 1)


def test_the_levels_offered_are_valid_and_run_from_mild_to_strong() -> None:
    for compression in all_descriptions():
        scale = compression.scale
        compression.config().check_levels(scale.choices)
        assert set(scale.default) <= set(scale.choices)
        assert list(scale.choices) == scale.sorted(scale.choices)


@pytest.mark.parametrize(
    ("metric", "value", "expected"),
    [
        ("top1", 0.978, "97.8 %"),
        ("loss", 0.0814, "0.081 nats"),
        ("kl", 0.0811, "0.081"),
        ("kl", 0.0, "0"),
        ("top1", 0.0, "0 %"),
        ("sqnr", 14.06, "14.1 dB"),
        ("sqnr", -3.2, "−3.2 dB"),
        ("sqnr", float("inf"), "no noise"),
    ],
)
def test_a_metric_is_read_in_its_own_unit(metric: str, value: float, expected: str) -> None:
    assert METRICS[metric].value_text(value) == expected


def test_a_title_becomes_the_name_of_a_file_on_any_system() -> None:
    assert fmt.file_stem("../Demo <b>: 50 %\n") == "demo_b_50"
    assert len(fmt.file_stem("long " * 50)) <= 60
    assert fmt.file_stem("…") == ""


@pytest.mark.parametrize(
    ("environment", "place"),
    [
        ({"device": "cuda:0"}, "on cuda:0"),
        ({"device": "cpu", "workers": "2", "cluster": "Ray 2"}, "on cpu of 2 workers"),
    ],
)
def test_the_place_of_a_run_is_named(environment: dict[str, str], place: str) -> None:
    assert provenance_text(replace(result(), environment=environment)).split(" · ")[-1] == place


@settings(deadline=None)
@given(
    names=st.lists(st.text(alphabet="ab.1", min_size=1, max_size=60), min_size=1, max_size=30),
    width=st.integers(16, 40),
)
def test_shortened_names_differ_where_names_do(names: list[str], width: int) -> None:
    shown = fmt.distinct_names(names, width)
    assert len(set(shown.values())) == len(set(names))
    assert all(len(text) <= width or text == name for name, text in shown.items())
    assert all(text == name for name, text in shown.items() if len(name) <= width)


def test_what_differs_is_shown_of_names_that_are_alike_in_front_and_at_the_end() -> None:
    names = [f"backbone.stages.{stage}.blocks.0.attention.query_key_value.projection" for stage in range(12)]
    shown = fmt.distinct_names(names, 26)
    assert all(f"{stage}.blocks" in shown[name] for stage, name in enumerate(names))


@pytest.mark.parametrize(
    ("spec", "title"),
    [
        (RunSpec(sensitivity=SensitivitySpec(compression=QuantizationConfig(), levels=(8,))), "Digits · fewer bits"),
        (RunSpec(data=DataSpec(kind="archive", path="/home/uploads/mine.zip")), "Digits · mine.zip · zeros"),
        (RunSpec(model=ModelSpec(library="timm", name="resnet18")), "timm/resnet18 · zeros"),
    ],
)
def test_a_title_names_images_that_are_not_of_a_demo(spec: RunSpec, title: str) -> None:
    assert run_title(spec) == title
    assert run_title(spec, (title, f"{title} (2)")) == f"{title} (3)"
    assert "mine" not in download_stem(spec)
