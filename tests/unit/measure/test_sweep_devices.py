"""Devices: which one is taken, and what happens where its memory is too small for a pass."""

from contextlib import contextmanager

import pytest
import torch
from torch import Tensor, nn

from senseapp.core.errors import InvalidSpec, MeasurementFailed
from senseapp.measure.context import MeasurementContext, choose_device
from senseapp.measure.plan import Layout, precision_context, settle_kernels
from senseapp.measure.sweep import Sweep
from senseapp.records.measurement import Status
from senseapp.records.spec import SensitivitySpec
from senseapp.server.machine import runs_on_processor
from senseapp.tasks import CLASSIFICATION
from tests.cases import first_of
from tests.small_models import images_for, small_network

SPEC = SensitivitySpec(levels=(0.3, 0.6))


class Scarce:
    """Lets a layer run out of memory for more than so many images, as CUDA does."""

    def __init__(self, layer: nn.Module, most_images: int) -> None:
        self.most_images = most_images
        self.refused = 0
        layer.register_forward_pre_hook(self)

    def __call__(self, _layer: nn.Module, given: tuple[Tensor, ...]) -> None:
        if len(given[0]) > self.most_images:
            self.refused += 1
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")


def _open(micro_batch: int = 8) -> Sweep:
    return Sweep.open(small_network(), images_for(), SPEC, layout=Layout(micro_batch=micro_batch), task=CLASSIFICATION)


@pytest.mark.parametrize("layer", first_of(["blocks.1.conv1", "stem", "head"]))
def test_passes_take_fewer_images_until_they_fit(layer: str) -> None:
    plain = {item.key: item for item in _open().measure()}
    sweep = _open()
    scarce = Scarce(sweep.context.model.get_submodule(layer), most_images=3)
    found = list(sweep.measure())
    assert sweep.context.layout.micro_batch == 2
    assert scarce.refused == 2  # at 8 and at 4 images, once and for all
    assert {item.key for item in found} == plain.keys()
    for item in found:
        assert item.status is Status.MEASURED
        for change in item.changes:
            expected = plain[item.key].change(change.metric)
            assert expected is not None
            assert change.delta == pytest.approx(expected.delta, abs=1e-5)
    assert sweep.notes == [
        "The memory of cpu was too small for passes over 8 images at once; 2 were taken from there on."
    ]


def test_a_layer_that_never_fits_fails_alone_and_the_others_keep_their_batches() -> None:
    sweep = _open()
    scarce = Scarce(sweep.context.model.get_submodule("blocks.0.conv1"), most_images=100)
    compress = sweep.compressor.compress

    @contextmanager
    def hungry(target, level):  # type: ignore[no-untyped-def]
        with compress(target, level) as applied:
            scarce.most_images = 0 if target.layer == "blocks.0.conv1" else 100
            try:
                yield applied
            finally:
                scarce.most_images = 100

    sweep.compressor.compress = hungry  # type: ignore[method-assign]
    failed = [item for item in list(sweep.measure()) if item.status is Status.FAILED]
    assert {item.layer for item in failed} == {"blocks.0.conv1"}
    assert "not enough memory: CUDA out of memory" in failed[0].reason
    assert sweep.context.layout.micro_batch == 8
    assert sweep.notes == []


def test_the_baseline_takes_fewer_images_too() -> None:
    model = small_network()
    Scarce(model.head, most_images=4)
    sweep = Sweep.open(model, images_for(), SPEC, layout=Layout(micro_batch=8), own=True, task=CLASSIFICATION)
    assert sweep.context.layout.micro_batch == 4
    assert len(sweep.notes) == 1
    assert sweep.baseline.outputs.shape == (24, 6)


def test_a_baseline_that_never_fits_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(MeasurementContext, "_gather", full)
    with pytest.raises(MeasurementFailed, match="not enough memory for one image"):
        _open()


@pytest.mark.parametrize("device", ["gpu", "", "cuda:", "cuda:x", "CPU"])
def test_a_device_of_another_name_is_refused(device: str) -> None:
    with pytest.raises(InvalidSpec, match="must be auto, cpu, cuda, cuda:NUMBER or mps"):
        SensitivitySpec(device=device)


@pytest.mark.parametrize("device", ["auto", "cpu", "cuda", "cuda:3", "mps"])
def test_devices_by_their_names(device: str) -> None:
    assert SensitivitySpec(device=device).device == device


def test_automatic_takes_a_card_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    assert runs_on_processor("auto")
    assert choose_device("auto").type == "cpu"
    assert not runs_on_processor("cuda:1")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch, "empty", lambda *_, device: None)  # a card that is made up cannot hold anything
    assert choose_device("auto").type == "cuda"
    assert not runs_on_processor("auto")


def test_a_device_that_is_not_here_is_refused() -> None:
    if not torch.cuda.is_available():
        with pytest.raises(InvalidSpec, match="There is no device 'cuda' on this machine"):
            choose_device("cuda")


def test_passes_on_a_card_are_in_float32_and_the_same_each_time() -> None:
    cudnn, card = torch.backends.cudnn, torch.device("cuda")
    before = cudnn.allow_tf32, cudnn.deterministic
    with precision_context("fp32", card):
        assert (cudnn.allow_tf32, cudnn.deterministic) == (False, True)
    assert (cudnn.allow_tf32, cudnn.deterministic) == before
    with precision_context("fp32", torch.device("cpu")):
        assert (cudnn.allow_tf32, cudnn.deterministic) == before
    try:
        settle_kernels(torch.device("cpu"))
        assert (cudnn.allow_tf32, cudnn.deterministic) == before
        settle_kernels(card)
        assert (cudnn.allow_tf32, cudnn.deterministic) == (False, True)
    finally:
        cudnn.allow_tf32, cudnn.deterministic = before
