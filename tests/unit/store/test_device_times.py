"""Reports of devices: each format against the times it was written with, matches, misses, and refusals."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from senseapp.cli.main import main
from senseapp.core.errors import InvalidFile
from senseapp.descriptions import get
from senseapp.records.deployment import LayerTimes
from senseapp.records.profile import FlowNode, ModelProfile
from senseapp.store.device_times.base import DEVICE_TIMES, Report, ReportFile, ReportRow
from senseapp.store.layer_times import is_report, kind_of, matched, read_layer_times, summarised
from senseapp.store.run_folder import RunFolder
from soak import device_times as soak
from tests import device_reports as reports
from tests.cases import examples
from tests.schedule_cases import run_of

PROFILE = reports.profile()
BITS = get("quantization").scale


def read(text: str, profile: ModelProfile = PROFILE, *, level: float | None = 32.0) -> LayerTimes:
    return read_layer_times(text.encode(), profile, BITS, name="report.txt", level=level)


def milliseconds(times: LayerTimes) -> dict[str, float]:
    return {each.layer: 1000 * each.seconds for each in times.times}


@pytest.mark.parametrize("form", reports.SOUND)
def test_every_form_says_the_times_that_it_was_written_with(form: str) -> None:
    found = read(reports.SOUND[form])
    assert milliseconds(found) == pytest.approx(reports.MILLISECONDS)
    assert len(found.unmatched) == 1
    assert "pool" in found.unmatched[0].lower()
    assert any("1 row of report.txt of no layer" in note for note in found.notes)


@pytest.mark.parametrize("form", reports.SOUND)
def test_what_no_layer_takes_is_the_rest_of_the_call(form: str) -> None:
    says_the_call = form in ("AI Hub", "ETDump") or form.startswith("Inspector")
    rest = 2.5 - sum(reports.MILLISECONDS.values()) if says_the_call else reports.OTHER
    if form != "Inspector in us":  # whose call takes 2.5 us there
        assert 1000 * read(reports.SOUND[form]).other_seconds == pytest.approx(rest)


@pytest.mark.parametrize("form", reports.SOUND)
def test_a_report_is_of_one_level(form: str) -> None:
    assert is_report(reports.SOUND[form].encode())
    with pytest.raises(InvalidFile, match="say at which level"):
        read(reports.SOUND[form], level=None)


def test_every_format_has_a_sound_report_and_says_how_it_is_written() -> None:
    guide = (Path(__file__).parents[3] / "docs/how-to/device-times.md").read_text("utf-8")
    files = [ReportFile(text.encode(), "r") for text in reports.SOUND.values()]
    for each in DEVICE_TIMES.values():
        assert any(each.recognises(file) for file in files)
        assert f"| {each.label} | {each.written_by} |" in guide
    for file in files:
        assert sum(each.recognises(file) for each in DEVICE_TIMES.values()) == 1


def test_the_mean_that_benchmark_model_prints_is_the_time_of_a_call() -> None:
    found = read(reports.CALLS + reports.tflite())
    assert milliseconds(found) == pytest.approx(reports.MILLISECONDS)
    assert 1000 * found.other_seconds == pytest.approx(2.5 - sum(reports.MILLISECONDS.values()))


@pytest.mark.parametrize("text", [reports.CALLS, reports.VELA_SUMMARY])
def test_a_report_of_calls_alone_has_no_times_of_layers(text: str) -> None:
    found = summarised(text.encode(), name="r.txt")
    assert found.seconds == pytest.approx(0.0025)
    assert found.kinds == ()
    with pytest.raises(InvalidFile, match="has the time of a call, and none of operations"):
        read(text)


def test_a_summary_has_kinds_and_processors_and_says_what_is_an_estimate() -> None:
    found = summarised(reports.vela().encode(), name="r.txt")
    assert (found.tool, found.is_estimate, found.processors) == ("Vela (Ethos-U)", True, (("NPU", 6),))
    assert found.kinds[0] == ("Conv2D", 2, pytest.approx(0.002))
    assert found.notes == ("r.txt is an estimate of Vela for Ethos_U55_256 at 500 MHz, not a measurement.",)
    measured = summarised(reports.ai_hub().encode(), name="r.json")
    assert (measured.is_estimate, measured.processors) == (False, (("NPU", 5),))
    with pytest.raises(InvalidFile, match="no report that senseapp knows"):
        summarised(b"layer,level,ms", name="r.csv")


# ---- matching


def of_rows(*rows: tuple[str, str, float], profile: ModelProfile = PROFILE, in_order: bool = True) -> LayerTimes:
    made = tuple(ReportRow(name=name, kind=kind, seconds=spent / 1000) for name, kind, spent in rows)
    return matched(Report(rows=made, in_order=in_order), profile, 32.0, "r.json")


NAMELESS = [("op #1", "Conv", 1.0), ("op #2", "DepthwiseConv", 2.0), ("op #3", "Conv", 3.0), ("op #4", "Gemm", 4.0)]


def test_names_with_underscores_for_dots_and_slashes_are_matched() -> None:
    found = of_rows(("_stem_stem_conv_Conv", "", 1.0), ("_blocks_blocks_0_blocks_0_dw_Conv", "", 2.0))
    assert milliseconds(found) == pytest.approx({"stem.conv": 1.0, "blocks.0.dw": 2.0})
    assert "2 layers without a time in r.json: blocks.0.pw, head." in found.notes


def test_a_name_that_may_be_of_two_layers_is_of_neither() -> None:
    layers = [replace(PROFILE.layers[0], name=name) for name in ("a.b_c", "a_b.c", "head")]
    found = of_rows(("net_a_b_c_Conv", "", 1.0), ("head", "", 1.0), profile=replace(PROFILE, layers=tuple(layers)))
    assert milliseconds(found) == {"head": 1.0}
    assert found.unmatched == ("net_a_b_c_Conv",)


def test_layers_called_by_digits_are_matched_by_paths_only() -> None:
    layers = tuple(replace(PROFILE.layers[place], name=str(place)) for place in range(2))
    digits = replace(PROFILE, layers=layers)
    found = of_rows(("/0/Conv", "", 1.0), ("1/Conv2D", "", 3.0), ("Pooling #1", "Pool", 2.0), profile=digits)
    assert milliseconds(found) == {"0": 1.0, "1": 3.0}


def test_a_row_from_one_layer_to_another_is_of_no_layer() -> None:
    name = "{ForeignNode[/stem/stem.conv/Conv.../head/Gemm]}"
    found = of_rows((name, "", 6.0), ("blocks.0.dw", "", 1.0))
    assert milliseconds(found) == {"blocks.0.dw": 1.0}
    assert found.unmatched == (name,)
    assert 1000 * found.other_seconds == pytest.approx(6.0)
    assert any("3 layers without a time in r.json: stem.conv, blocks.0.pw, head" in note for note in found.notes)


def test_other_names_of_tensorrt() -> None:
    found = of_rows(
        ("/stem/stem.conv/Conv + PWN(PWN(/stem/act/Sigmoid), /stem/act/Mul)", "", 2.0),
        ("[PWN(/blocks/blocks.0/blocks.0.dw/Relu, /blocks/blocks.0/blocks.0.pw/Relu)]", "", 3.0),
        ("Reformatting CopyNode for Input Tensor 0 to /head/Gemm", "", 5.0),
        ("/head/Gemm", "", 1.0),
    )
    macs = {layer.name: layer.macs for layer in PROFILE.layers}
    pair = macs["blocks.0.dw"] + macs["blocks.0.pw"]
    assert milliseconds(found) == pytest.approx(
        {"stem.conv": 2.0, "head": 1.0} | {name: 3 * macs[name] / pair for name in ("blocks.0.dw", "blocks.0.pw")}
    )
    assert found.unmatched == ("Reformatting CopyNode for Input Tensor 0 to /head/Gemm",)


def test_rows_without_names_are_assigned_in_order_and_a_note_says_so() -> None:
    found = of_rows(*NAMELESS[:3], ("pool", "Pool", 9.0), NAMELESS[3])
    assert milliseconds(found) == pytest.approx({"stem.conv": 1.0, "blocks.0.dw": 2.0, "blocks.0.pw": 3.0, "head": 4.0})
    assert found.notes[0] == (
        "4 rows of r.json name no layer: they were assigned in order, which fits in number and kind."
    )


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        (NAMELESS[:3], "one too few"),
        ([*NAMELESS, ("op #5", "Conv", 1.0)], "one too many"),
        ([NAMELESS[1], NAMELESS[0], *NAMELESS[2:]], "another order of kinds"),
        ([("head", "Gemm", 1.0), *NAMELESS[1:]], "a name elsewhere"),
    ],
)
def test_an_order_that_does_not_fit_assigns_nothing(rows: list[tuple[str, str, float]], why: str) -> None:
    named = [row for row in rows if row[0] == "head"] or [("/stem/conv/Conv", "", 1.0)]
    rows = rows if named[0] in rows else [*rows, *named]
    found = of_rows(*rows)
    assert len(found.times) == 1, why
    assert len(found.unmatched) == len(rows) - 1


def test_rows_that_are_not_in_order_are_not_assigned_by_it() -> None:
    with pytest.raises(InvalidFile, match="has no time of any layer"):
        of_rows(*NAMELESS, in_order=False)


def test_shapes_speak_against_an_order() -> None:
    def row(place: int, shape: tuple[int, ...]) -> ReportRow:
        return ReportRow(name=f"op {place}", kind=NAMELESS[place][1], seconds=1.0, output_shape=shape)

    shapes = [(16, 16, 8), (8, 16, 16), (16, 16, 16), (5,)]
    assert len(matched(Report(rows=tuple(map(row, range(4), shapes))), PROFILE, 32.0, "r").times) == 4
    other = Report(rows=tuple(map(row, range(4), [(8, 7, 7), *shapes[1:]])))
    with pytest.raises(InvalidFile):
        matched(other, PROFILE, 32.0, "r")


def test_a_layer_that_is_called_twice_takes_both_rows() -> None:
    nodes = [FlowNode(name="image", kind="input")]
    nodes += [
        FlowNode(name=name, kind="layer", inputs=(place,))
        for place, name in enumerate(["stem.conv", "blocks.0.pw", "blocks.0.pw", "head"])
    ]
    rows = [NAMELESS[0], ("op", "Conv", 3.0), ("op", "Conv", 5.0), NAMELESS[3]]
    found = of_rows(*rows, profile=replace(PROFILE, flow=tuple(nodes)))
    assert milliseconds(found) == pytest.approx({"stem.conv": 1.0, "blocks.0.pw": 8.0, "head": 4.0})
    assert "1 layer without a time in r.json: blocks.0.dw." in found.notes


def test_a_fused_row_is_shared_out_by_macs() -> None:
    found = of_rows(("/stem/stem.conv/Conv || /head/Gemm", "", 2.0), ("blocks.0.dw + blocks.0.pw", "", 2.0))
    macs = {layer.name: layer.macs for layer in PROFILE.layers}
    whole = macs["stem.conv"] + macs["head"]
    assert milliseconds(found)["stem.conv"] == pytest.approx(2 * macs["stem.conv"] / whole)
    assert sum(milliseconds(found).values()) == pytest.approx(4)
    assert any("2 rows of r.json are of several layers" in note for note in found.notes)


@pytest.mark.parametrize(
    ("operator", "kind"),
    [
        ("DEPTHWISE_CONV_2D", "depthwise"),
        ("Convolution (NHWC, QC8) DWConv", "depthwise"),
        ("TRANSPOSE_CONV", "transposed"),
        ("ConvolutionBackpropData", "transposed"),
        ("GroupConvolution", "conv"),
        ("aten.convolution.default", "conv"),
        ("QLinearConv", "conv"),
        ("Fully Connected (NC, F32) GEMM", "linear"),
        ("aten.addmm.default", "linear"),
        ("Convert", None),
        ("BATCH_MATMUL", None),
        ("RESIZE_BILINEAR", None),
        ("MaxPool", None),
    ],
)
def test_kinds_of_operators(operator: str, kind: str | None) -> None:
    assert kind_of(operator) == kind


# ---- the command line


def test_a_schedule_of_reports_lists_every_miss(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = RunFolder(tmp_path / "run")
    folder.make()
    sizes = dict.fromkeys(("a.conv", "b.conv", "c"), 10)
    folder.save_result(run_of(sizes, dict.fromkeys(sizes, (0.1,)), (8.0,), compression="quantization"))
    for level, spent in (("32", 2000), ("8", 1000)):
        rows = [{"name": f"/{name}/Conv", "type": "Conv", "execution_time": spent} for name in ("a/conv", "b/conv")]
        rows += [{"name": f"/pool{place}", "type": "Pool", "execution_time": 1} for place in range(6)]
        summary = {"estimated_inference_time": 5000 - 1000 * (level == "8")}
        (tmp_path / f"{level}.json").write_text(json.dumps({"execution_summary": summary, "execution_detail": rows}))
    times = [word for level in ("32", "8") for word in ("--times", f"{level}={tmp_path}/{level}.json")]
    asked = ["schedule", "--run", str(folder.path), "--format", "json", "--out", str(tmp_path / "out.json")]
    assert main([*asked, *times, "--budget", "ms", "--target", "4.1"]) == 0
    said = capsys.readouterr()
    assert "Time of one call: 4 ms" in said.out
    assert "6 rows of 32.json of no layer, 0.006 ms together: /pool0, /pool1, /pool2, /pool3, …." in said.out
    assert said.err.splitlines() == [*(f"Of no layer: /pool{place}" for place in range(6)), "Without a time: c"]


# ---- damaged and hostile files


BAD = [(file.family, file) for file in soak.by_hand() if len(file.content) < 3_000_000]
"""Those that are quick; ``soak.device_times`` reads all."""


@pytest.mark.parametrize("file", [file for _, file in BAD], ids=[family for family, _ in BAD])
def test_a_bad_report_is_one_sentence(file: soak.BadReportFile) -> None:
    assert soak.outcome_of(file) in (("refused",) if file.is_refused else ("refused", "read"))


def test_what_is_wrong_with_a_row_is_named() -> None:
    text = soak.with_time("AI Hub", reports.ai_hub(), "-1")
    with pytest.raises(InvalidFile) as refused:
        read(text)
    time = "the time of row 1 (/stem/stem.conv/Conv)"
    assert str(refused.value) == f"report.txt is damaged: {time} must be a finite number from 0 to 1e+11, got -1."


@settings(max_examples=examples(80), deadline=None)
@given(
    form=st.sampled_from(list(reports.SOUND)),
    at=st.floats(0, 1),
    cut=st.integers(0, 60),
    put=st.one_of(st.binary(max_size=12), st.sampled_from([b"NaN", b"-1e999", b"null", b"[", b"\xff", b'"', b",,,"])),
)
def test_a_changed_report_is_read_or_refused_in_one_sentence(form: str, at: float, cut: int, put: bytes) -> None:
    content = reports.SOUND[form].encode()
    start = int(at * len(content))
    changed = content[:start] + put + content[start + cut :]
    assert soak.outcome_of(soak.BadReportFile(family=form, content=changed, is_refused=False)) in ("read", "refused")


KEYS = [
    *("execution_detail", "execution_summary", "execution_time", "name", "run_data", "events", "profile_event"),
    *("event_name", "columns", "data", "nodes", "avg_performance", "ph", "cat", "averageMs"),
]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(KEYS),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=3),
    max_leaves=10,
)


@settings(max_examples=examples(40), deadline=None)
@given(JSON)
def test_any_json_is_read_or_refused_in_one_sentence(payload: object) -> None:
    content = json.dumps(payload).encode()
    assert soak.outcome_of(soak.BadReportFile(family="", content=content, is_refused=False)) in ("read", "refused")


# ---- what a format alone has


@pytest.mark.parametrize(
    ("payload", "said"),
    [
        ({"execution_detail": [{"name": "/head/Gemm", "type": "Conv", "execution_time": 0}]}, "no times of layers"),
        ({"detailed_performance": {"nodes": ["name", "node_type"]}}, "bring its CSV"),  # of OpenVINO's tool in Python
    ],
    ids=["rounded to no time", "fields in place of operations"],
)
def test_why_a_report_has_no_times_is_explained(payload: dict[str, object], said: str) -> None:
    with pytest.raises(InvalidFile, match=said):
        read(json.dumps(payload))


def test_layers_that_take_longer_than_the_call_leave_nothing_for_the_rest() -> None:
    payload = json.loads(reports.ai_hub())
    payload["execution_summary"]["estimated_inference_time"] = 1000
    assert read(json.dumps(payload)).other_seconds == 0


def test_a_delegate_in_another_unit_is_refused() -> None:
    payload = json.loads(reports.etdump())
    for run in payload["run_data"][1:]:
        for event in run["events"]:
            profiled = event["profile_event"]
            if profiled["name"] == "":
                profiled["end_time"] = profiled["start_time"] + 1000 * (profiled["end_time"] - profiled["start_time"])
    with pytest.raises(InvalidFile, match="delegate counts in another unit"):
        read(json.dumps(payload))


def test_columns_without_a_unit_are_milliseconds_and_a_note_says_so() -> None:
    found = read(reports.inspector(unit=""))
    assert milliseconds(found) == pytest.approx(reports.MILLISECONDS)
    assert any("name no unit" in note for note in found.notes)


def test_a_sorted_report_of_openvino_is_matched_by_name_alone() -> None:
    sorted_rows = sorted(reports.openvino_rows(), key=lambda row: -float(row[4]))
    header = ",".join([*reports.OPENVINO_HEADER, '"proportion (%)'])  # the tool's own line break follows
    rows = [",".join([*row, "1%"]) for row in sorted_rows]
    text = "\n".join([header, '"', *rows, "", "Total time: 2.44 milliseconds", "Total CPU time: 2.44 milliseconds"])
    assert milliseconds(read(text)) == pytest.approx(reports.MILLISECONDS)
    with pytest.raises(InvalidFile, match="no time of any layer"):
        read(re.sub("/(stem|blocks|head)[^,]*", "op", text))


def test_operations_of_a_delegate_count_in_its_place() -> None:
    text = reports.tflite()
    delegate = "\t".join(["TfLiteXNNPackDelegate", "2.5", "2.5", "99%", "99%", "0", "1", "[out]:9"])
    before, middle, after = text.partition("Operator-wise")
    order, _, rest = (middle + after).partition("Top by")
    rows = order.splitlines()
    outer = "\n".join([*rows[:3], delegate, "", ""])
    inner = "\n".join(["Delegate internal: ", *rows[1:3], *_xnnpack(), "", "Top by" + rest])
    found = read(before + outer + inner)
    assert milliseconds(found) == pytest.approx(reports.MILLISECONDS)
    assert 1000 * found.other_seconds == pytest.approx(2.5 - sum(reports.MILLISECONDS.values()))


def _xnnpack() -> list[str]:
    return [
        "\t".join([kind, "9", f"{spent:g}", "1%", "1%", "0", "1", f"Delegate/{kind}:{place}"])
        for place, (_, kind, spent) in enumerate(reports.XNNPACK_ROWS)
    ]


def test_an_operation_that_is_called_twice_takes_twice_its_mean() -> None:
    text = reports.tflite().replace("\t           1\t[net/head/MatMul]", "\t           2\t[net/head/MatMul]")
    assert milliseconds(read(text))["head"] == pytest.approx(2 * reports.MILLISECONDS["head"])


def test_a_layer_that_never_runs_is_not_missed() -> None:
    idle = replace(PROFILE.layers[0], name="aux", runs=False)
    found = read(reports.ai_hub(), replace(PROFILE, layers=(*PROFILE.layers, idle)))
    assert not any("without a time" in note for note in found.notes)
