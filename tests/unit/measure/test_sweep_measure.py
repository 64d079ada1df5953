"""What a sweep yields: statuses, resuming, chunks, settling early, and a model that stays as it is."""

import itertools
import random
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from senseapp.compressions import PruningConfig, QuantizationConfig, SparsityConfig
from senseapp.core.errors import InvalidDataset, InvalidInput, InvalidSpec, NoLayersSelected, UnsupportedModel
from senseapp.data.images import TensorImages
from senseapp.measure import sweep as sweep_module
from senseapp.measure.plan import Layout
from senseapp.measure.quick.scan import quick_scan
from senseapp.measure.sweep import Sweep, measure
from senseapp.records.measurement import LayerMeasurement, Status, latest
from senseapp.records.spec import SensitivitySpec
from senseapp.tasks import CLASSIFICATION
from tests.cases import first_of
from tests.small_models import NUM_CLASSES, chain, fingerprint, images_for, small_network

LEVELS = (0.3, 0.6)
CONFIGS = [
    (SparsityConfig(), LEVELS),
    (PruningConfig(), LEVELS),
    (QuantizationConfig(), (3.0, 5.0)),
    (SparsityConfig(criterion="wanda"), LEVELS),
    (QuantizationConfig(activations=True), (3.0, 5.0)),
]
CONFIG_NAMES = ["sparsity", "pruning", "quantization", "wanda", "activations"]


def _open(
    model: nn.Module | None = None, images: TensorImages | None = None, micro_batch: int = 4, **settings: object
) -> Sweep:
    spec = SensitivitySpec(**{"levels": LEVELS, **settings})  # type: ignore[arg-type]
    layout = Layout(micro_batch=micro_batch)
    images = images_for() if images is None else images
    return Sweep.open(model or small_network(), images, spec, layout=layout, task=CLASSIFICATION)


def _final(measurements: Sequence[LayerMeasurement]) -> list[LayerMeasurement]:
    """Return what counts in the end, without the time it took."""
    return sorted((replace(item, seconds=0.0) for item in latest(measurements)), key=lambda item: item.key)


def _in_chunks(monkeypatch: pytest.MonkeyPatch, sweep: Sweep, num_chunks: int) -> None:
    """Leave memory for so little that the images are measured in ``num_chunks`` parts."""
    images = -(-len(sweep.context.images) // num_chunks)
    whole = sweep_module.chunk_spans
    monkeypatch.setattr(
        sweep_module,
        "chunk_spans",
        lambda count, **given: whole(count, **{**given, "budget_bytes": images * given["bytes_per_image"]}),
    )
    assert len(sweep.chunks()) == num_chunks


@pytest.mark.parametrize(("config", "levels"), first_of(CONFIGS, 3), ids=CONFIG_NAMES)
def test_the_callers_model_and_images_stay_as_they_are(config: object, levels: tuple[float, ...]) -> None:
    model, images = small_network().train(), images_for()
    model.head.weight.grad = torch.ones_like(model.head.weight)
    model.stem.requires_grad_(False)
    model.stem.register_forward_hook(lambda *_: None)
    before, pixels = fingerprint(model), images.images.clone()
    found = list(measure(model, images, SensitivitySpec(compression=config, levels=levels), task=CLASSIFICATION))
    assert Status.MEASURED in {item.status for item in found}
    assert fingerprint(model) == before
    assert torch.equal(images.images, pixels)


@pytest.mark.parametrize(("config", "levels"), first_of(CONFIGS, 3), ids=CONFIG_NAMES)
def test_the_private_model_is_restored_too_also_on_cancel(config: object, levels: tuple[float, ...]) -> None:
    sweep = _open(compression=config, levels=levels)
    before = fingerprint(sweep.context.model)
    run = sweep.measure()
    list(itertools.islice(run, 3))
    assert fingerprint(sweep.context.model) == before  # whenever the caller has the turn
    run.close()
    assert fingerprint(sweep.context.model) == before
    list(sweep.measure())
    assert fingerprint(sweep.context.model) == before
    assert list(quick_scan(sweep))
    assert fingerprint(sweep.context.model) == before


@pytest.mark.slow
@pytest.mark.parametrize("num_chunks", first_of([3, 1]))
@pytest.mark.parametrize(("config", "levels"), first_of(CONFIGS, 3), ids=CONFIG_NAMES)
def test_resuming_anywhere_ends_at_the_same_numbers(
    config: object, levels: tuple[float, ...], num_chunks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep = _open(compression=config, levels=levels)
    _in_chunks(monkeypatch, sweep, num_chunks)
    whole = list(sweep.measure())
    assert sum(item.status is not Status.NOT_APPLICABLE for item in whole) == sweep.total
    for stop in random.Random(0).sample(range(len(whole) + 1), 2):
        rest = list(_open(compression=config, levels=levels).measure(done=whole[:stop]))
        assert len(rest) == len(whole) - stop
        assert _final([*whole[:stop], *rest]) == _final(whole)


def test_chunks_add_up_to_the_same_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    sweep = _open()
    whole = _final(list(sweep.measure()))
    _in_chunks(monkeypatch, sweep, 3)
    parts = list(sweep.measure())
    assert len(parts) == 3 * len(whole)
    for one, many in zip(whole, _final(parts), strict=True):
        for change, other in zip(one.changes, many.changes, strict=True):
            assert other.num_samples == change.num_samples == 24
            assert other.moments == pytest.approx(change.moments, rel=1e-9, abs=1e-12)
            assert change.metric not in ("top1", "top5", "agreement") or other.moments == change.moments


def test_deltas_have_intervals_that_hold_them() -> None:
    for item in _open().measure():
        assert {change.metric for change in item.changes} == {"top1", "top5", "loss", "kl", "agreement", "sqnr"}
        for change in item.changes:
            assert change.ci_low <= change.delta <= change.ci_high
            assert change.ci_low < change.ci_high or change.delta == 0


def _far_apart() -> nn.Module:
    """One layer that matters greatly and one that hardly does: few images tell them apart."""
    model = chain(2)
    with torch.no_grad():
        model.head.weight.mul_(5)
        model.conv1.weight.mul_(1e-3)
    return model


def test_settling_stops_where_neighbours_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep_module, "_SETTLE_FROM", 16)
    images = images_for(128)
    settings = {"levels": (0.5,), "metric": "kl", "until_settled": True, "layers": ("conv1", "head")}
    sweep = _open(_far_apart(), images, **settings)
    found = list(sweep.measure())
    assert len(sweep.chunks()) > 1
    used = {item.layer: item.changes[0].num_samples for item in latest(found)}
    assert max(used.values()) < 128
    intervals = sorted((item.change("kl").ci_low, item.change("kl").ci_high) for item in latest(found))
    assert intervals[0][1] < intervals[1][0]


def test_settling_spends_images_on_neighbours_that_overlap_and_can_be_resumed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep_module, "_SETTLE_FROM", 8)
    settings = {"metric": "kl", "until_settled": True}
    whole = list(_open(images=images_for(64), **settings).measure())
    used = {item.changes[0].num_samples for item in latest(whole)}
    assert max(used) == 64
    for stop in range(0, len(whole), 5):
        rest = list(_open(images=images_for(64), **settings).measure(done=whole[:stop]))
        assert _final([*whole[:stop], *rest]) == _final(whole)


def test_settling_resumes_alike_when_a_later_part_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep_module, "_SETTLE_FROM", 8)
    settings = {"metric": "kl", "until_settled": True, "levels": (0.5,)}
    sweep = _open(images=images_for(64), **settings)
    _fail_at(sweep, "blocks.0.conv1", RuntimeError("broken"), after=1)
    whole = list(sweep.measure())
    assert {item.layer for item in latest(whole) if item.status is Status.FAILED} == {"blocks.0.conv1"}
    assert list(_open(images=images_for(64), **settings).measure(done=whole)) == []


def _fail_at(sweep: Sweep, layer: str, error: Exception, *, after: int = 0) -> None:
    """Let the compressed ``layer`` raise ``error`` in its forward pass, from its ``after``-th measurement on."""
    compress, counts = sweep.compressor.compress, itertools.count()

    @contextmanager
    def failing(target, level):  # type: ignore[no-untyped-def]
        with compress(target, level) as applied:
            if target.layer != layer or next(counts) < after:
                yield applied
                return
            handle = sweep.context.model.head.register_forward_pre_hook(lambda *_: (_ for _ in ()).throw(error))
            try:
                yield applied
            finally:
                handle.remove()

    sweep.compressor.compress = failing  # type: ignore[method-assign]


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ValueError("no such thing\nat all"), "The compressed model failed: ValueError: no such thing"),
        (
            RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried 8 bytes"),
            "There was not enough memory: [enforce fail] DefaultCPUAllocator: can't allocate memory: you tried 8 bytes."
            " Choose a smaller batch size.",
        ),
        (torch.OutOfMemoryError("CUDA out of memory."), "There was not enough memory"),
        (MemoryError("too much"), "There was not enough memory: too much."),
    ],
)
def test_an_error_fails_one_layer_only(error: Exception, words: str) -> None:
    sweep = _open()
    before = fingerprint(sweep.context.model)
    plain = {item.key: item for item in _final(list(sweep.measure()))}
    _fail_at(sweep, "blocks.0.conv2", error)
    for item in sweep.measure():
        if item.layer == "blocks.0.conv2":
            assert item.status is Status.FAILED
            assert item.reason.startswith(words)
            assert item.changes == ()
        else:
            assert replace(item, seconds=0.0) == plain[item.key]
    assert fingerprint(sweep.context.model) == before


class _Constant(nn.Module):
    """Class scores that do not depend on the image, or are no numbers."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.head = nn.Linear(4, NUM_CLASSES)
        self.value = value

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.conv(x).mean((2, 3))) * 0 + self.value


@pytest.mark.parametrize("settings", [{}, {"until_settled": True}, {"precision": "auto"}])
def test_a_network_whose_output_is_nan_fails_with_its_reason_in_every_mode(settings: dict[str, object]) -> None:
    found = list(_open(_Constant(float("nan")), **settings).measure())
    assert len(latest(found)) == 4
    assert {(item.status, item.reason) for item in found} == {
        (Status.FAILED, "The uncompressed model's output is not finite for 24 of 24 images, so nothing compares.")
    }


def test_constant_scores_change_nothing() -> None:
    for item in _open(_Constant(0.0)).measure():
        assert item.status is Status.MEASURED
        assert all(change.delta == 0 for change in item.changes)


@pytest.mark.parametrize("images", [*map(images_for, (1, 2, 5)), images_for(6, labels=torch.zeros(6).long())])
def test_few_images_and_those_of_one_class_are_measured(images: TensorImages) -> None:
    found = list(_open(images=images).measure())
    assert {item.status for item in found} == {Status.MEASURED}
    assert {change.num_samples for item in found for change in item.changes} == {len(images)}


def test_a_batch_of_one_gives_what_larger_batches_give() -> None:
    one, four = (_final(list(_open(micro_batch=size).measure())) for size in (1, 4))
    for first, second in zip(one, four, strict=True):
        assert first.change("loss").delta == pytest.approx(second.change("loss").delta, abs=1e-5)
        assert first.change("top1").moments == second.change("top1").moments


def test_batch_size_bounds_a_pass() -> None:
    sweep = Sweep.open(small_network(), images_for(), SensitivitySpec(levels=LEVELS, batch_size=3), task=CLASSIFICATION)
    assert sweep.context.layout.micro_batch <= 3


def test_the_ranking_metric_follows_the_labels_and_what_their_number_can_show() -> None:
    many = images_for(381, size=4)
    assert _open(images=many, mode="quick").metric == "top1"
    assert _open(images=TensorImages(many.images), mode="quick").metric == "kl"
    images = images_for()
    assert _open(images=images, metric="sqnr").metric == "sqnr"
    assert (_open(images=images).metric, _open(images=images, metric="top1").metric) == ("kl", "top1")


def _five_classes() -> nn.Module:
    model = small_network()
    model.head = nn.Linear(8, 5)
    return model


def _answering(output: Callable[[Tensor], object]) -> nn.Module:
    """Return a network of one convolution whose result is ``output`` of it."""
    model = nn.Sequential(nn.Conv2d(3, 3, 1))
    model.register_forward_hook(lambda _module, _given, result: output(result))
    return model


ZEROS = torch.zeros(24, dtype=torch.long)


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        (
            {"images": TensorImages(images_for().images), "metric": "loss"},
            InvalidSpec,
            r"needs labels, and there are none\. Choose one of kl, agreement, sqnr",
        ),
        ({"model": _five_classes(), "images": images_for(labels=ZEROS), "metric": "top5"}, InvalidSpec, "at least 6"),
        ({"images": images_for(labels=ZEROS + 9)}, InvalidInput, "class indices from 0 to 5"),
        ({"layers": ("nothing*",)}, NoLayersSelected, "No layer matches nothing"),
        ({"model": _answering(lambda x: x)}, UnsupportedModel, "class scores"),
        ({"model": _answering(lambda x: {"scores": x.mean((2, 3))})}, UnsupportedModel, "class scores"),
        ({"images": TensorImages(torch.randn(4, 1, 8, 8))}, UnsupportedModel, "cannot take an image of shape"),
        ({"images": TensorImages(torch.empty(0, 3, 8, 8))}, InvalidDataset, "no images"),
    ],
)
def test_what_does_not_fit_together_is_refused(given: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        _open(**given)


def test_fewer_images_than_are_asked_for_are_all_taken() -> None:
    assert len(_open(num_samples=25).context.images) == 24


def test_fewer_samples_are_drawn_with_the_seed() -> None:
    first, again, other = (_open(num_samples=10, seed=seed).context.images for seed in (0, 0, 1))
    assert len(first) == 10
    assert first.names == again.names
    assert first.names != other.names
