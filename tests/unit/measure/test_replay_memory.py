"""What a prefix keeps while layers are walked, counted in bytes of storage."""

from collections.abc import Callable, Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from senseapp.compat.torch_internals import UnreadableTensor
from senseapp.measure.replay import Prefix, Replay, ReplayMismatch, prefix_bytes_per_image
from senseapp.metrics.predictions import tensors_in
from senseapp.networks.profile import profile_model
from senseapp.networks.trace import CallTrace, trace_calls
from tests.architectures import ARCHITECTURES, example_input
from tests.small_models import chain, small_network

BATCH = 4


def _storage_bytes(prefix: Prefix) -> int:
    """Return the bytes that kept outputs occupy, each storage once."""
    storages = {
        storage.data_ptr(): storage.nbytes()
        for output in prefix._outputs.values()
        for storage in (tensor.untyped_storage() for tensor in tensors_in(output) if not _is_gone(tensor))
    }
    return sum(storages.values())


def _is_gone(tensor: torch.Tensor) -> bool:
    """Tell whether a tensor is a shape without memory."""
    return isinstance(tensor, UnreadableTensor)


def _walk(model: nn.Module, images: torch.Tensor) -> Iterator[tuple[CallTrace, int, Prefix]]:
    """Yield the prefix at the position of each compressible layer."""
    trace = trace_calls(model, images[:1])
    profile = profile_model(model, images[:1], trace=trace)
    positions = [trace.first_event(frozenset([layer.name])) for layer in profile.layers if layer.runs]
    prefix, replay = Prefix(trace, images), Replay(model, trace)
    with torch.inference_mode(), replay.installed():
        for position in positions:
            assert position is not None
            replay.advance(prefix, position)
            yield trace, position, prefix


def test_a_chain_keeps_one_output() -> None:
    depth, width, size = 6, 8, 16
    images = torch.randn(BATCH, 3, size, size)
    one_output = BATCH * width * size * size * 4
    held = [_storage_bytes(prefix) for _, _, prefix in _walk(chain(depth, width), images)]
    assert held[0] == 0
    assert held[1:-1] == [one_output] * (depth - 1)
    assert held[-1] == BATCH * width * 4  # the pooled features


def test_a_residual_block_keeps_its_shortcut_and_the_path() -> None:
    size = 8
    images = torch.randn(BATCH, 3, size, size)
    one_output = BATCH * 8 * size * size * 4
    held = [_storage_bytes(prefix) for _, _, prefix in _walk(small_network(), images)]
    # stem; block 1: input, then input and path; block 2: likewise; head: features after the mean, which is recomputed
    assert held == [0, one_output, 2 * one_output, one_output, 2 * one_output, one_output]


@pytest.mark.parametrize("name", ["tv_resnet18", "densenet121", "mobilenetv3_small_050", "vit_tiny", "swin_tiny"])
def test_no_position_holds_more_than_is_foreseen(name: str) -> None:
    architecture = ARCHITECTURES[name]
    images = example_input(architecture, BATCH)
    sizes = []
    for trace, position, prefix in _walk(architecture.build(), images):
        foreseen = prefix_bytes_per_image(trace, [position]) * BATCH
        held = _storage_bytes(prefix)
        assert held <= foreseen
        sizes.append(held)
    everything = sum(call.output_bytes for call in trace.calls) * BATCH
    assert 0 < max(sizes) < 0.35 * everything


def _placeholders() -> list[torch.Tensor]:
    prefix = [prefix for _, _, prefix in _walk(chain(), torch.randn(BATCH, 3, 8, 8))][-1]
    return [tensor for output in prefix._outputs.values() for tensor in tensors_in(output) if _is_gone(tensor)]


READS: dict[str, Callable[[torch.Tensor], object]] = {
    "sum": torch.sum,
    "view": lambda x: x[:, 0],
    "linear": lambda x: F.linear(x, torch.ones(2, x.shape[-1])),
    "branch": lambda x: bool(x.max() > 0),
    "comparison": lambda x: torch.ones(()) + x,
    "write": lambda x: x.mul_(2),
    "copy": torch.clone,
    "another type": lambda x: x.double(),
}


@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize("read", READS)
def test_a_placeholder_that_is_read_raises(read: str, inference: bool) -> None:
    gone = _placeholders()
    assert {tensor.shape for tensor in gone} >= {torch.Size([BATCH, 8, 8, 8])}
    with torch.inference_mode(inference), torch.no_grad(), pytest.raises(ReplayMismatch, match="read an output again"):
        READS[read](gone[0])
