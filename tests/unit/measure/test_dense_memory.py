"""Memory of runs on dense networks: few images together, where one image is much work, and references held once."""

import pytest
import torch
from torch import Tensor, nn

from senseapp.data.images import TensorImages
from senseapp.measure import context as context_module
from senseapp.measure.sweep import Sweep
from senseapp.records.spec import SensitivitySpec
from senseapp.tasks import SEGMENTATION, Task


class Map(nn.Module):
    """Three convolutions, which answer for each pixel."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1))
        self.head = nn.Conv2d(8, 4, 1)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.layers(images))


def opened(module: nn.Module, task: Task, *, side: int = 16, count: int = 12) -> Sweep:
    torch.manual_seed(0)
    images = TensorImages(torch.randn(count, 3, side, side))
    spec = SensitivitySpec(levels=(0.5, 0.9), num_samples=count, batch_size=2, device="cpu")
    return Sweep.open(module, images, spec, task=task)


def test_images_of_a_dense_network_are_measured_in_spans_of_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(1)
    module = Map()
    whole = opened(module, SEGMENTATION)
    assert whole.chunks() == [(0, 12)]  # 12 images are little work
    each, expected = whole.bytes_per_image(), list(whole.measure())
    monkeypatch.setattr(context_module, "_DENSE_ACTIVATION_BYTES", 5 * each)
    monkeypatch.setattr(context_module, "_DENSE_MACS", 1.0)
    parted = opened(module, SEGMENTATION)
    spans = parted.chunks()
    assert len(spans) > 1
    assert all(stop - start <= 5 for start, stop in spans)
    last = {(item.layer, item.level): item for item in parted.measure()}
    assert len(expected) == len(last) == 6
    for item in expected:
        for change in item.changes:
            other = last[item.layer, item.level].change(change.metric)
            assert other is not None
            assert other.delta == pytest.approx(change.delta, rel=1e-4, abs=1e-6), (item.layer, change.metric)


def test_a_pass_takes_fewer_images_with_large_outputs_unless_a_batch_size_is_set() -> None:
    sweep = opened(Map(), SEGMENTATION)
    largest = max(call.output_bytes for call in sweep.context.trace.calls) // sweep.context.trace.batch_size
    assert largest == 4 * 8 * 16 * 16
    assert sweep.context.most_in_pass(10_000) == 32 * 2**20 // largest
    assert sweep.context.most_in_pass(3) == 3


class _Counted(TensorImages):
    """Counts the batches that are computed."""

    count = 0

    def batch(self, start: int, stop: int) -> Tensor:
        self.count += 1
        return super().batch(start, stop)


def test_images_for_ranges_are_computed_when_they_are_read() -> None:
    context = opened(Map(), SEGMENTATION).context
    images = _Counted(torch.randn(5, 3, 16, 16))
    found = context.arranged_when_read(images, 0, 5)
    assert (len(found), images.count) == (3, 0)  # two images in each pass
    for _ in range(2):
        assert torch.equal(torch.cat(list(found)), images.images)
    assert images.count == 6
    assert [len(each) for each in found[1:]] == [2, 1]
