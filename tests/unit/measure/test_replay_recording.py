"""Prefixes that a whole pass has left outputs with hold what they would have computed, and compute less."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from senseapp.compat.torch_internals import UnreadableTensor
from senseapp.measure.prefix import Prefix, ReplayMismatch, calls_to_record
from senseapp.measure.replay import Replay
from senseapp.measure.sweep import Sweep
from senseapp.networks.profile import profile_model
from senseapp.networks.trace import CallTrace, tensors_in, trace_calls
from senseapp.records.spec import SensitivitySpec
from senseapp.tasks import CLASSIFICATION
from tests.architectures import ARCHITECTURES, example_input
from tests.cases import first_of
from tests.small_models import chain, images_for, small_network
from tests.trap_models import PIXELS, REPLAYED

BATCH = 3
NETWORKS = ["tv_resnet18", "densenet121", "mobilenetv3_small_050", "vit_tiny", "swin_tiny"]
EVERYTHING = 2**40

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:FutureWarning")


class Convolutions(TorchDispatchMode):
    """Counts them."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func in (torch.ops.aten.convolution.default, torch.ops.aten.conv2d.default)
        return func(*args, **(kwargs or {}))


def _watched(model: nn.Module, images: torch.Tensor) -> tuple[CallTrace, list[int]]:
    """Return a watched pass and the position of each layer."""
    trace = trace_calls(model, images[:1])
    layers = profile_model(model, images[:1], trace=trace).layers
    found = {trace.first_event(frozenset([layer.name])) for layer in layers if layer.runs}
    return trace, sorted(position for position in found if position is not None)


@cache
def _known(name: str) -> tuple[nn.Module, torch.Tensor, CallTrace, list[int]]:
    """Return a network, images for it and what one watched pass has shown; walks leave all of it as it was."""
    model, images = ARCHITECTURES[name].build(), example_input(ARCHITECTURES[name], BATCH)
    return model, images, *_watched(model, images)


def _kept(prefix: Prefix) -> dict[int, list[torch.Tensor]]:
    return {index: list(tensors_in(output)) for index, output in prefix._outputs.items()}


def _recorded_bytes(prefix: Prefix) -> int:
    tensors = [tensor for output in prefix._recorded.values() for tensor in tensors_in(output)]
    storages = [tensor.untyped_storage() for tensor in tensors if not isinstance(tensor, UnreadableTensor)]
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


def _assert_walks_alike(
    model: nn.Module, trace: CallTrace, images: torch.Tensor, calls: Mapping[int, bool], stops: Sequence[int]
) -> None:
    """Compare a prefix that has recorded ``calls`` with one that computes all, bit for bit, at each of ``stops``."""
    replay, plain, recorded = Replay(model, trace), Prefix(trace, images), Prefix(trace, images)
    with torch.inference_mode(), replay.installed():
        expected = model(plain.inputs)
        assert torch.equal(replay.record(recorded, calls), expected)
        for stop in stops:
            replay.advance(plain, stop)
            replay.advance(recorded, stop)
            left, right = _kept(plain), _kept(recorded)
            assert left.keys() == right.keys()
            for index, tensors in left.items():
                for one, other in zip(tensors, right[index], strict=True):
                    assert one.shape == other.shape
                    assert isinstance(one, UnreadableTensor) == isinstance(other, UnreadableTensor)
                    if not isinstance(one, UnreadableTensor):
                        torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)
            assert torch.equal(replay.resume(recorded), expected)
    assert not recorded._recorded or max(trace.calls[index].end for index in recorded._recorded) >= stops[-1]


@pytest.mark.architectures
@pytest.mark.parametrize("share", [0.1, 1.0])
@pytest.mark.parametrize("name", first_of(NETWORKS, 2))
def test_a_recorded_walk_is_the_same_walk(name: str, share: float) -> None:
    model, images, trace, positions = _known(name)
    everything = sum(call.output_bytes for call in trace.calls) * BATCH
    budget = int(share * everything)
    calls = calls_to_record(trace, positions, num_images=BATCH, budget_bytes=budget)
    for stops in (positions, positions[::3], positions[len(positions) // 2 :]):
        _assert_walks_alike(model, trace, images, calls, stops)


@pytest.mark.parametrize("name", REPLAYED)
def test_networks_that_make_replay_hard_walk_alike(name: str) -> None:
    torch.manual_seed(0)
    model, images = REPLAYED[name]().eval(), torch.randn(BATCH, 3, PIXELS, PIXELS)
    trace, positions = _watched(model, images)
    for budget in (600, 4000, EVERYTHING):
        calls = calls_to_record(trace, positions, num_images=BATCH, budget_bytes=budget)
        _assert_walks_alike(model, trace, images, calls, positions)


@pytest.mark.parametrize("name", first_of(NETWORKS, 2))
def test_no_more_is_recorded_than_may_be(name: str) -> None:
    model, images, trace, positions = _known(name)
    replay, held = Replay(model, trace), []
    for budget in (0, 20_000, 200_000, EVERYTHING):
        prefix = Prefix(trace, images)
        with torch.inference_mode(), replay.installed():
            replay.record(prefix, calls_to_record(trace, positions, num_images=BATCH, budget_bytes=budget))
        held.append(_recorded_bytes(prefix))
        assert held[-1] <= budget
    assert held == sorted(held)
    assert held[-1] > 0


def test_nothing_recorded_is_computed_again() -> None:
    model, images = small_network(), torch.randn(BATCH, 3, 8, 8)
    trace, positions = _watched(model, images)
    counts = {}
    for budget in (0, EVERYTHING):
        prefix, replay = Prefix(trace, images), Replay(model, trace)
        with torch.inference_mode(), replay.installed():
            replay.record(prefix, calls_to_record(trace, positions, num_images=BATCH, budget_bytes=budget))
            with Convolutions() as convolutions:
                for position in positions:
                    replay.advance(prefix, position)
        counts[budget] = convolutions.count
    assert counts == {0: 5, EVERYTHING: 0}  # all of them, as the last position is the classifier's


def test_most_work_per_byte_is_recorded_first() -> None:
    sizes = ((3, 3), (4, 3), (4, 7))
    model = nn.Sequential(*(nn.Conv2d(channels, 4, kernel, padding="same") for channels, kernel in sizes))
    trace, positions = _watched(model.extend([nn.Flatten(), nn.Linear(256, 2)]), torch.randn(1, 3, 8, 8))
    one_output = 4 * 4 * 8 * 8
    calls = calls_to_record(trace, positions, num_images=1, budget_bytes=one_output)
    # Of the layer with the largest kernel, what the classifier reads.
    assert {trace.calls[index].module: needed for index, needed in calls.items()} == {"2": False, "3": True}


def test_images_that_take_another_way_are_told() -> None:
    class ByBrightness(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.dark, self.bright = chain(), chain()

        def forward(self, x: torch.Tensor) -> Any:
            return self.bright(x) if x.mean() > 0 else self.dark(x)

    model, images = ByBrightness().eval(), torch.ones(BATCH, 3, 8, 8)
    trace, positions = _watched(model, images)
    replay = Replay(model, trace)
    calls = calls_to_record(trace, positions, num_images=BATCH, budget_bytes=EVERYTHING)
    with replay.installed(), pytest.raises(ReplayMismatch, match="called out of order"):
        replay.record(Prefix(trace, -images), calls)


def test_a_run_keeps_nothing_once_its_images_are_measured() -> None:
    sweep = Sweep.open(small_network(), images_for(), SensitivitySpec(levels=(0.5,)), task=CLASSIFICATION)
    probe = sweep.executor._probe(sweep)  # type: ignore[attr-defined]
    assert list(probe._recorded) == [(0, 24)]
    list(sweep.measure())
    assert probe._recorded == {}
