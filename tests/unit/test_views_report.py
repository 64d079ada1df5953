"""The report: one HTML file that holds everything, loads nothing, and says nothing that people wrote as markup."""

from __future__ import annotations

import base64
import gzip
import io
import json
import re
from dataclasses import replace
from functools import partial
from html.parser import HTMLParser
from typing import Any

import pandas as pd
import pytest

from senseapp.compressions import PruningConfig, QuantizationConfig
from senseapp.metrics import METRICS, MetricChange
from senseapp.records.measurement import RunResult
from senseapp.records.schedule import ResourceBudget, ValidationResult
from senseapp.records.spec import DataSpec, RunSpec, SensitivitySpec
from senseapp.server.leaderboard import headline
from senseapp.solve.methods import make_schedule
from senseapp.views.charts.layers import sensitivity_bars
from senseapp.views.frames.levels import marked
from senseapp.views.frames.results import at_level, measurement_frame
from senseapp.views.report.document import build_report
from senseapp.views.report.figures import ChartData, ReportContents, _Shown
from senseapp.views.report.tables import layer_tables
from tests.pages.records import FRAGILE, NAMES, NOT_PRUNABLE, result

MOST_BYTES = 3_000_000
HOSTILE = "</script><script>alert('x')</script><img src=https://evil.example/x onerror=alert(1)>"


class _Page(HTMLParser):
    """Collects what a browser would see: tags with their attributes, texts, and the contents of scripts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[tuple[str, str]] = []
        self.texts: list[str] = []
        self._open = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._open = tag
        if tag == "script":
            self.scripts.append((str(dict(attrs).get("type", "")), ""))

    def handle_endtag(self, tag: str) -> None:
        self._open = ""

    def handle_data(self, data: str) -> None:
        if self._open == "script":
            kind, text = self.scripts[-1]
            self.scripts[-1] = kind, text + data
        else:
            self.texts.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split())

    @property
    def charts(self) -> dict[str, Any]:
        """The specifications and frames of all charts."""
        packed = next(text for kind, text in self.scripts if kind == "text/plain")
        charts: dict[str, Any] = json.loads(gzip.decompress(base64.b64decode(packed)))
        return charts

    @property
    def specs(self) -> list[dict[str, Any]]:
        specs: list[dict[str, Any]] = self.charts["specs"]
        return specs


def report(whole: RunResult, *, title: str = "Demo", **more: Any) -> _Page:
    contents = ReportContents(title=title, result=whole, headline=headline(whole), made_seconds=0.0, **more)
    return _Page(build_report(contents))


@pytest.fixture(scope="module")
def page() -> _Page:
    return report(result(estimates=True))


def test_the_finding_the_source_of_the_numbers_and_the_settings_are_there(page: _Page) -> None:
    for part in (
        "Most fragile: layer2.0.conv1 loses 12.0 points at 75 %. 3 of 6 layers lose nothing measurable: 512",
        "Measured · 512 images · 95 % intervals, paired by image · precision fp32 · seed 0",
        "Compression Sparsity Granularity Single weights",
        "Images The demo's handwritten digits Measured on 512 images",
        "Memory layout default",
        "Right answers 98.0 %",
        "Rank agreement of estimate and measurement (Spearman, 1 is perfect): 0.97 at 50 %.",
        "1 January 1970, 00:00 UTC",
    ):
        assert part in page.text


def test_every_view_is_drawn_and_has_its_words(page: _Page) -> None:
    assert len(page.specs) == 3 + 1 + 1 + 3  # bars and network at each level, curves, heat map
    assert (
        "Loss of right answers of 6 layers at 50 %. Most fragile: layer2.0.conv1: 8.0 points at 50 %, measured"
        in page.text
    )
    assert page.text.count("Level 25 % 50 % 75 %") == 2


def test_the_colours_are_named_beside_every_chart_that_has_them(page: _Page) -> None:
    named = "up to 1 point to 3 to 10 to 30 more too few images to say"
    assert page.text.count(named) == 3  # bars, heat map, network


def test_every_number_of_every_metric_is_in_a_table_with_its_interval(page: _Page) -> None:
    for name in ("top1", "loss", "kl", "agreement", "sqnr"):
        assert f"{METRICS[name].change_title} when one layer is compressed" in page.text
    assert "layer2.0.conv1 Conv2d 1.15 k 73.7 k 4.0 points (3.4 to 4.6) 8.0 points (7.4 to 8.6)" in page.text


def test_estimates_are_marked_as_such() -> None:
    quick = replace(result(estimates=True), measurements=())
    text = report(quick).text
    assert "Estimated from one backward pass" in text
    assert "≈ 0.080" in text
    passed = replace(quick, estimates=tuple(replace(item, images_passed=4) for item in quick.estimates))
    assert "Estimated from one backward pass and true passes over a few images" in report(passed).text


def test_nothing_is_loaded_from_anywhere(page: _Page) -> None:
    for tag, attributes in page.tags:
        assert tag not in ("link", "img", "iframe", "object", "embed", "base")
        assert not {"src", "href", "srcset", "action", "data", "poster"} & set(attributes)
    style = next(text for text in page.texts if "color-scheme" in text)
    assert "url(" not in style
    assert "@import" not in style


def test_only_the_reports_own_scripts_may_run() -> None:
    contents = ReportContents(title="Demo", result=result(), headline="")
    text = build_report(contents)
    policy = next(a["content"] for t, a in _Page(text).tags if a.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    allowed = policy.split("script-src ")[1].split(";")[0].split()
    assert len(allowed) == 3  # two hashes, and eval for Vega's expressions
    assert "'unsafe-inline'" not in allowed
    assert "http" not in policy


def test_what_people_wrote_is_never_markup() -> None:
    names = (*NAMES[:-1], HOSTILE)
    whole = replace(result(names=names), notes=(HOSTILE,))
    page = report(whole, title=HOSTILE)
    tags = [tag for tag, _ in page.tags]
    assert "img" not in tags
    kinds = [kind for kind, _ in page.scripts]
    assert kinds.count("") == 2  # the library and the report's own
    assert page.text.count("<script>alert('x')</script>") >= 4  # title twice, the row, the note
    bars = page.specs[0]
    assert HOSTILE in bars["layer"][0]["encoding"]["y"]["scale"]["domain"]


def test_every_chart_finds_its_rows(page: _Page) -> None:
    used = set(re.findall(r'"data": \{"name": "(\w+)"\}', json.dumps(page.specs)))
    assert used == set(page.charts["frames"])
    assert all("values" not in spec.get("data", {}) for spec in page.specs)


def test_a_frame_is_kept_once_with_the_columns_that_are_drawn() -> None:
    rows = marked(at_level(measurement_frame(result(), "top1"), 0.5))
    rows.loc[rows.index[0], "high"] = float("inf")
    data = ChartData()
    numbers = [data.take(sensitivity_bars(rows, METRICS["top1"], x_domain=(-1, 9)), {"width": 5}) for _ in range(2)]
    assert numbers == [0, 1]
    assert data.specs[0] == data.specs[1]
    assert data.specs[0]["width"] == 5
    kept = pd.read_json(io.StringIO(data.frames[data.specs[0]["data"]["name"]]))
    assert list(kept["row"]) == list(rows["row"])
    assert list(kept["drop"]) == pytest.approx(list(rows["drop"]), abs=1e-6)
    assert pd.isna(kept["high"][0])
    assert kept["unclear"].tolist() == rows["unclear"].tolist()
    assert not {"params", "value", "order"} & set(kept.columns)


@pytest.mark.wide
@pytest.mark.slow
def test_a_long_network_at_many_levels_stays_small() -> None:
    names = tuple(f"stage{i // 50}.blocks.{i // 5}.module{i % 5}.conv" for i in range(300))
    spec = RunSpec(sensitivity=SensitivitySpec(levels=tuple(place / 11 for place in range(1, 11))))
    whole = result(spec, names=names, estimates=True)
    text = build_report(ReportContents(title="Large", result=whole, headline=headline(whole)))
    assert len(text.encode()) < MOST_BYTES
    tables, left_out = layer_tables(whole, partial(measurement_frame, whole))
    assert len(tables[0].rows) == 300
    assert ("no table of" in left_out) == (len(tables) < 5)


@pytest.mark.parametrize(("layers", "levels", "drawn"), [(3, 20, 20), (3, 50, 20), (700, 50, 14), (2000, 9, 5)])
def test_levels_without_a_drawing_are_said(layers: int, levels: int, drawn: int) -> None:
    spec = RunSpec(sensitivity=SensitivitySpec(levels=tuple((1 + place) / (levels + 1) for place in range(levels))))
    whole = result(spec)
    whole = replace(whole, profile=replace(whole.profile, layers=whole.profile.layers[:1] * layers))
    metric, levels_of_rows = METRICS["top1"], list(whole.levels)
    shown = _Shown(result=whole, metric=metric, data=ChartData(), frame=pd.DataFrame(), levels=levels_of_rows)
    found = shown.drawn_levels
    assert len(found) == len(set(found)) == drawn
    assert (found[0], found[-1], sorted(found)) == (whole.levels[0], whole.levels[-1], found)
    sentence = f"{drawn} of {levels} levels are drawn; the tables have all."
    assert shown.left_out.endswith(sentence) == (drawn < levels)


def proof(whole: RunResult) -> ValidationResult:
    def change(delta: float) -> MetricChange:
        return MetricChange(
            metric="top1", baseline=0.98, value=0.98 - delta, delta=delta, ci_low=delta - 0.01, ci_high=delta + 0.01,
            num_samples=269,
        )  # fmt: skip

    return ValidationResult(
        schedule=make_schedule(whole, budget=ResourceBudget(kind="params", target=0.4), metric="top1"),
        changes=(change(0.05),),
        repaired=(change(0.02),),
        uniform=(change(0.11),),
        predicted=0.03,
        sizes={"file_bytes": (892_000.0, 893_000.0)},
        files={".safetensors": 893_000, ".sparse.safetensors.gz": 420_000},
        notes=("Measured once.",),
    )


def test_a_proof_shows_predicted_beside_measured_and_the_uniform_schedule() -> None:
    whole = result()
    page = report(whole, validations=(proof(whole),))
    for part in (
        "Least damage for the budget, 40 % of the weights removed",
        "Predicted loss of right answers 3.0 points",
        "Checkpoint 892 kB → 893 kB",
        "Weights with zeros compressed 420 kB",
        "98.0 % 93.0 % 5.0 points (4.0 to 6.0) 96.0 % 2.0 points (1.0 to 3.0) 87.0 % 11.0 points",
        "Measured on 269 images",
        "Measured once.",
    ):
        assert part in page.text


def test_a_proof_of_an_earlier_version_does_not_pass_an_estimate_off_as_a_file() -> None:
    whole = result()
    earlier = replace(proof(whole), sizes={"bytes": (892_000.0, 420_000.0)}, files={})
    assert "If stored compactly (estimated, no such file) 892 kB → 420 kB" in report(whole, validations=(earlier,)).text


def test_a_schedule_without_proof_says_that_it_is_only_predicted() -> None:
    whole = result()
    schedule = proof(whole).schedule
    assert "Measured Not yet" in report(whole, schedules=(schedule,)).text
    both = report(whole, schedules=(schedule,), validations=(proof(whole),))
    assert "Measured Not yet" not in both.text


@pytest.mark.parametrize(
    "spec",
    [
        RunSpec(sensitivity=SensitivitySpec(compression=PruningConfig(), levels=(0.3, 0.5))),
        RunSpec(sensitivity=SensitivitySpec(compression=QuantizationConfig(), levels=(8, 4))),
    ],
    ids=["pruning", "bits"],
)
def test_other_compressions_have_reports_too(spec: RunSpec) -> None:
    page = report(result(spec))
    assert FRAGILE in page.text
    if isinstance(spec.sensitivity.compression, PruningConfig):
        assert "1 layer without a value" in page.text
        assert f"{NOT_PRUNABLE} Cannot be compressed alone 30, 50 % Its channels are added" in page.text


def test_random_inputs_are_said_at_every_chart() -> None:
    page = report(result(RunSpec(data=DataSpec(kind="random"))))
    figures = sum(tag == "figure" for tag, _ in page.tags)
    assert page.text.count("Indicative only: the inputs are random") == figures + 1


def test_a_run_without_any_value_says_so() -> None:
    page = report(replace(result(), measurements=()), finished=False)
    assert "No layer has a value." in page.text
    assert "has not finished" in page.text
