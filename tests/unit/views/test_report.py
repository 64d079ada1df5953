"""The report: one HTML file that holds everything, loads nothing, and says nothing that people wrote as markup."""

import base64
import re
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import pytest

from senseapp.compressions import PruningConfig, QuantizationConfig
from senseapp.metrics import MetricChange
from senseapp.prove.decision import usual_decision
from senseapp.records.executed import ExecutedNode, IntegerShare
from senseapp.records.measurement import RunResult
from senseapp.records.schedule import ResourceBudget, ValidationResult
from senseapp.records.spec import DataSpec, RunSpec, SensitivitySpec
from senseapp.solve.methods import make_schedule
from senseapp.views.report.document import ReportContents, build_report
from tests.deployments import a_candidate, a_deployment
from tests.pages.records import FRAGILE, NAMES, NOT_PRUNABLE, change, result

MOST_BYTES = 3_000_000
HOSTILE = "</script><script>alert('x')</script><img src=https://evil.example/x onerror=alert(1)>"


class _Page(HTMLParser):
    """Collects what a browser would see: tags with their attributes, and texts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split())

    @property
    def drawings(self) -> list[str]:
        """The charts, as SVG."""
        addresses = (str(attributes["src"]) for tag, attributes in self.tags if tag == "img")
        return [base64.b64decode(address.removeprefix("data:image/svg+xml;base64,")).decode() for address in addresses]


def report(whole: RunResult, *, title: str = "Demo", **more: Any) -> _Page:
    return _Page(build_report(ReportContents(title=title, result=whole, made_seconds=0.0, **more)))


@pytest.fixture(scope="module")
def page() -> _Page:
    return report(result(estimates=True))


def test_the_finding_the_source_of_the_numbers_and_the_settings_are_there(page: _Page) -> None:
    for part in (
        "Most fragile: layer2.0.conv1 changes about 8 of 100 answers at 50 %. 3 of 6 layers lose nothing measurable:",
        "Measured · 512 images · 95 % intervals",
        "Passes computed in 32-bit numbers · random choices of seed 0",
        "Compression Set the smallest weights to zero Granularity Single weights",
        "Images The demo's handwritten digits Measured on 512 images",
        "Right answers, uncompressed 98.0 % (512 images)",
        "then measured, where 1 is the same order and 0 no relation: 0.97 at 50 %.",
        "1 January 1970, 00:00 UTC",
    ):
        assert part in page.text


def test_the_answer_is_that_of_results_and_of_the_same_file() -> None:
    nodes = [ExecutedNode(name="conv1", kind="Conv", in_integers=True, macs=94)]
    nodes.append(ExecutedNode(name="fc", kind="Gemm", in_integers=False, macs=6))
    record = a_deployment(in_float=(), integers=IntegerShare.of(nodes, kept=["fc"], layers={}))
    file = a_candidate("int8", metric="top1", lost=0.004, deployment=record)
    found = report(result(), candidates=(file,))
    assert "94 % of the multiplications are computed in integers (1 of 2 products); 1 stays in float: fc" in found.text
    answer = usual_decision((file,), "smaller")
    parts = [answer.headline, answer.evidence, answer.reason, "Most fragile: layer2.0.conv1"]
    parts += ["What does each layer lose", "Compression Set"]  # the answer comes first, the settings last
    assert [found.text.index(part) for part in parts] == sorted(found.text.index(part) for part in parts)
    warned = report(replace(result(), num_samples=140, baseline={"top1": 0.07}), candidates=(file,)).text
    assert 0 < warned.index("right on 7 % of 140 images, near chance") < warned.index(answer.headline)
    assert "nats" not in warned
    assert not re.search("held-out|int8|packed|repaired", warned)


def test_the_layers_are_drawn_with_words_and_colours(page: _Page) -> None:
    (drawing,) = page.drawings
    assert "Up to 1 of 100 answers change" in drawing
    assert all(name in drawing for name in NAMES)
    words = next(str(attributes["alt"]) for tag, attributes in page.tags if tag == "img")
    assert words.startswith("Most fragile: layer2.0.conv1: about 8 of 100 answers at 50 %, measured")


def test_every_number_of_the_metric_is_in_a_table_with_its_interval(page: _Page) -> None:
    assert "Of 100 answers, about so many change when one layer is compressed" in page.text
    assert "layer2.0.conv1 4 (3.4 to 4.6) 8 (7.4 to 8.6)" in page.text


def test_it_is_read_in_five_minutes() -> None:
    whole = result(estimates=True)
    assert len(report(whole, validations=(proof(whole),), changed=()).text.split()) <= 1200


def test_estimates_are_marked_as_such() -> None:
    quick = replace(result(estimates=True), measurements=())
    text = report(quick).text
    assert "estimates from one pass for all layers" in text
    assert "≈ 0.080" in text
    passed = replace(quick, estimates=tuple(replace(item, images_passed=4) for item in quick.estimates))
    assert "estimates from one pass for all layers and passes of their own over a few images" in report(passed).text


def test_nothing_is_loaded_from_anywhere_and_no_script_runs(page: _Page) -> None:
    for tag, attributes in page.tags:
        assert tag not in ("link", "iframe", "object", "embed", "base", "script")
        assert not {"href", "srcset", "action", "data", "poster"} & set(attributes)
        assert str(attributes.get("src", "data:")).startswith("data:")
    style = next(text for text in page.texts if "color-scheme" in text)
    assert "url(" not in style
    assert "@import" not in style
    policy = next(a["content"] for t, a in page.tags if a.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None
    assert "script" not in policy
    assert "http" not in policy


def test_what_people_wrote_is_never_markup() -> None:
    page = report(replace(result(names=(*NAMES[:-1], HOSTILE)), notes=(HOSTILE,)), title=HOSTILE)
    assert not {"script", "iframe", "object"} & {tag for tag, _ in page.tags}
    assert page.text.count("<script>alert('x')</script>") >= 4  # title twice, the row, the note
    assert "<script" not in page.drawings[0]


@pytest.mark.wide
@pytest.mark.slow
def test_a_long_network_at_many_levels_stays_small() -> None:
    names = tuple(f"stage{i // 50}.blocks.{i // 5}.module{i % 5}.conv" for i in range(300))
    spec = RunSpec(sensitivity=SensitivitySpec(levels=tuple(place / 11 for place in range(1, 11))))
    text = build_report(ReportContents(title="Large", result=result(spec, names=names, estimates=True)))
    assert len(text.encode()) < MOST_BYTES
    assert all(name in text for name in names)


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


def test_the_share_of_changed_answers_is_the_measured_one_where_there_is_one() -> None:
    whole = result()
    schedule = make_schedule(whole, budget=ResourceBudget(kind="params", target=0.4), metric="kl")
    proven = replace(proof(whole), schedule=schedule, changes=(change("kl", 0.05, 0.01),), repaired=(), predicted=0.05)
    assert "Measured changed answers about 5 of 100 answers" in report(whole, validations=(proven,)).text
    counted = report(
        whole, validations=(replace(proven, changes=(*proven.changes, change("agreement", 0.007, 0.005))),)
    )
    assert "Measured share of changed answers 0.7 %" in counted.text
    assert "Measured changed answers" not in counted.text


def test_a_proof_shows_what_was_measured_alone_and_the_uniform_schedule() -> None:
    whole = result()
    page = report(whole, validations=(proof(whole),))
    for part in (
        "Least damage for the budget, 40.0 % of the weights removed",
        "Measured loss of right answers 5.0 points (4.0 to 6.0; 269 images)",
        "Weights, on disk 893 kB",
        "Weights with zeros compressed, on disk 420 kB, 47.1 % of the original's 892 kB of weights",
        "93.0 % 5.0 points 4.0 to 6.0",
        "96.0 % 2.0 points 1.0 to 3.0",
        "87.0 % 11.0 points",
        "Measured on 269 unseen images",
        "Measured once.",
    ):
        assert part in page.text
    assert "Predicted loss" not in page.text


def test_a_schedule_without_proof_says_that_it_is_only_predicted() -> None:
    whole = result()
    schedule = proof(whole).schedule
    page = report(whole, schedules=(schedule,))
    assert "Predicted loss of right answers" in page.text
    assert "Measured Not yet" in page.text
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
    assert page.text.count("Indicative only: the inputs are random") == 2


def test_a_run_without_any_value_says_so() -> None:
    page = report(replace(result(), measurements=()), finished=False)
    assert "No layer has a value." in page.text
    assert "has not finished" in page.text
