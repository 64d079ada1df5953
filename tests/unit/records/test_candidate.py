"""Candidates: their headline, names, original and form."""

from dataclasses import replace

import pytest

from senseapp.core.codec import dumps, loads
from senseapp.core.errors import InvalidSpec
from senseapp.prove.deploy import Deployed, Source
from senseapp.records.candidate import Delivery, with_one_original
from senseapp.records.deployment import Deployment, Median
from senseapp.records.executed import ExecutedNode, IntegerShare
from senseapp.records.schedule import Schedule, ScheduleEntry
from tests.deployments import a_candidate, a_deployment, some_figures, usual_figures


def test_the_headline_says_size_time_and_answers_with_their_interval() -> None:
    assert a_candidate().headline == (
        "18.8 MB → 4.70 MB · 0.55 × the time (0.54 to 0.56) · 96 of 100 answers stay (94 to 98; 200 unseen images)"
    )


def test_the_headline_of_labelled_images_counts_right_answers_before_and_after() -> None:
    found = a_candidate(metric="top1", lost=0.01, share=1.0, held_out=False)
    assert found.headline == (
        "18.8 MB → 4.70 MB · 1.00 × the time (0.98 to 1.02) · 99 of 100 answers right, 100 before "
        "(97 to 100; 200 images also used to make or choose it)"
    )


@pytest.mark.parametrize(
    ("metric", "words"),
    [
        ("lrap", "Ranking precision 96.0 %, 100 % before"),
        ("label_agreement", "96 of 100 labels stay"),
        ("agreement", "96 of 100 answers stay"),
    ],
)
def test_the_headline_counts_what_the_metric_counts(metric: str, words: str) -> None:
    assert words in a_candidate(metric=metric, lost=0.04).headline


def test_weights_without_some_channels_are_not_said_to_fit_the_architecture() -> None:
    entry = ScheduleEntry(layer="conv1", members=("conv1",), compression="pruning", level=0.5, predicted_damage=0.0)
    pruned = Schedule(model="net", method="manual", entries=(entry,))
    assert "same layers" in a_candidate("weights").opened_by
    assert "smaller layers" in a_candidate("weights", schedule=pruned).opened_by
    zeros = replace(pruned, entries=(replace(entry, compression="sparsity"),))
    assert "same layers" in a_candidate("weights", schedule=zeros).opened_by
    assert "onnxruntime" in a_candidate("onnx", schedule=pruned).opened_by


@pytest.mark.parametrize(
    "name", ["../../etc/passwd", "compressed-0.safetensors", f"deployed-{'0' * 16}.pkl", f"/deployed-{'0' * 16}.onnx"]
)
def test_a_name_that_no_run_gives_its_files_is_refused(name: str) -> None:
    with pytest.raises(InvalidSpec):
        a_candidate(file=name)


def test_a_delivery_is_read_back_as_it_was() -> None:
    record = Delivery(candidates=(a_candidate(), a_candidate("weights")), notes=("No int8.",))
    assert loads(dumps(record), Delivery) == record


def test_times_that_cannot_be_told_from_the_originals_are_not_called_faster() -> None:
    one = a_candidate(share=0.99)
    assert not one.is_faster
    assert replace(one, figures=replace(one.figures, time_ratio=Median(value=0.9, low=0.85, high=0.95))).is_faster
    barely = Median(value=0.985, low=0.98, high=0.99)  # told from the original's in one opening, not in the next
    assert not replace(one, figures=replace(one.figures, time_ratio=barely)).is_faster


def test_the_original_of_a_run_has_one_size_that_of_the_file_that_runs() -> None:
    packed = a_candidate("small", size=1_000_000, original=some_figures(0.01, 1.0, 17_000_000))
    every = with_one_original([packed, a_candidate()])
    assert [each.original.file_bytes for each in every] == [18_800_000] * 2
    assert with_one_original([packed]) == (packed,)


def test_a_busy_machine_is_said_beside_the_time() -> None:
    one = a_candidate()
    busy = replace(one, figures=replace(one.figures, busy=True))
    assert "0.55 × the time (0.54 to 0.56), while the computer was busy · " in busy.headline


def test_a_file_of_a_search_that_computes_in_float_says_that_its_weights_have_8_bits() -> None:
    stored = a_deployment(in_float=("conv1", "conv2"))
    assert a_candidate("onnx", deployment=stored).made_of == ".onnx file, only its weights in 8 bits"
    assert a_candidate("onnx").made_of == "original as .onnx file"


def test_the_file_of_the_runtimes_own_quantizer_has_a_title_of_its_own() -> None:
    own = usual_figures()["default"]
    made, theirs = (
        a_candidate("int8", deployment=a_deployment(in_float=(), figures=usual_figures(file=figures)))
        for figures in (usual_figures()["int8"], own)
    )
    assert made.made_of == ".onnx file in 8-bit numbers"
    assert theirs.made_of == f"{made.made_of} by onnxruntime"


def executed(*products: tuple[str, bool, int, bool]) -> tuple[ExecutedNode, ...]:
    return tuple(
        ExecutedNode(name=name, kind="Conv", in_integers=inside, macs=macs, is_rounded=inside or rounded)
        for name, inside, macs, rounded in products
    )


def test_the_share_of_integers_is_one_sentence_with_the_reasons() -> None:
    nodes = executed(("a", True, 940, True), ("b", False, 30, True), ("c", False, 20, False), ("d", False, 10, False))
    other = ExecutedNode(name="pool", kind="MaxPool", in_integers=True)
    found = IntegerShare.of((*nodes, other), kept=["c"], layers={"c": "layer.c"})
    assert found is not None
    assert found.sentence == (
        "94 % of the multiplications are computed in integers (1 of 4 products); 3 stay in float: b (the runtime "
        "computes it in float); layer.c (8 bits harm the answers); d (not quantized)."
    )
    assert (found.nodes, found.integer_nodes) == (5, 2)
    assert IntegerShare.of([other], kept=(), layers={}) is None
    nearly = IntegerShare.of(executed(("a", True, 99_999, True), ("b", False, 1, True)), kept=(), layers={})
    assert nearly is not None
    assert nearly.sentence.startswith("99.9 % of")  # not all
    assert loads(dumps(a_deployment(integers=found)), Deployment) == a_deployment(integers=found)


@pytest.mark.parametrize(("macs", "partly"), [(499, True), (500, False)])
def test_a_file_with_less_than_half_in_integers_is_partly_so(macs: int, partly: bool) -> None:
    nodes = executed(("a", True, macs, True), ("b", False, 1000 - macs, True))
    record = a_deployment(in_float=(), integers=IntegerShare.of(nodes, kept=(), layers={}))
    assert record.integers is not None
    assert ("is called one in 8-bit numbers from 50 %" in record.integers.sentence) is partly
    made = Deployed(content=b"", record=record, answers=None, held_out=True)
    candidate = made.candidate(Source(network=b""), name_of=lambda _what: a_candidate().file)
    assert candidate.title == (".onnx file, partly in 8-bit numbers" if partly else ".onnx file in 8-bit numbers")
    assert candidate.integers_text == record.integers.sentence
    assert a_candidate().integers_text == ""
