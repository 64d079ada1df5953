"""Networks that convolve in three dimensions, beside two: every compression measures them or says why not."""

import pytest
import torch
from torch import Tensor, nn

from senseapp.compressions import PruningConfig, QuantizationConfig, SparsityConfig
from senseapp.core.errors import UnsupportedModel
from senseapp.descriptions import CompressionConfig
from senseapp.measure.plan import Layout, lay_out
from senseapp.measure.quick.scan import quick_scan
from senseapp.measure.sweep import Sweep
from senseapp.networks.profile import profile_model
from senseapp.records.measurement import Status
from senseapp.records.spec import SensitivitySpec
from senseapp.tasks import CLASSIFICATION
from tests.small_models import images_for


class _Volumes(nn.Module):
    """An image repeated along time, after a 2-D convolution; NUM_CLASSES class scores."""

    def __init__(self) -> None:
        super().__init__()
        self.image = nn.Conv2d(3, 4, 3, padding=1)
        self.first = nn.Conv3d(4, 8, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm3d(8)
        self.up = nn.ConvTranspose3d(8, 8, 2, stride=2)
        self.head = nn.Linear(8, 6)

    def forward(self, x: Tensor) -> Tensor:
        frames = self.image(x).unsqueeze(2).expand(-1, -1, 4, -1, -1)
        return self.head(self.up(self.norm(self.first(frames)).relu()).mean((2, 3, 4)))


@pytest.mark.parametrize("mode", ["exact", "quick"])
@pytest.mark.parametrize(
    ("config", "level"),
    [
        (SparsityConfig(), 0.5),
        (SparsityConfig(granularity="kernel", criterion="wanda"), 0.5),
        (SparsityConfig(granularity="2:4"), 0.5),
        (PruningConfig(), 0.5),
        (QuantizationConfig(activations=True), 4.0),
    ],
)
def test_each_compression_measures_them(config: CompressionConfig, level: float, mode: str) -> None:
    torch.manual_seed(0)
    spec = SensitivitySpec(compression=config, levels=(level,), mode=mode)  # type: ignore[arg-type]
    sweep = Sweep.open(_Volumes().eval(), images_for(8), spec, task=CLASSIFICATION)
    found = list(quick_scan(sweep) if mode == "quick" else sweep.measure())
    assert {"first", "up"} <= {item.layer for item in found if item.status is Status.MEASURED}
    assert Status.FAILED not in {item.status for item in found}


def test_only_images_are_laid_out_channels_last() -> None:
    model = lay_out(_Volumes(), Layout(channels_last=True))
    assert model.get_parameter("image.weight").is_contiguous(memory_format=torch.channels_last)
    assert model.get_parameter("first.weight").is_contiguous()
    assert lay_out(model, Layout()).get_parameter("image.weight").is_contiguous()


def test_an_image_where_a_volume_is_wanted_is_refused_in_words() -> None:
    with pytest.raises(UnsupportedModel, match="cannot take an image of shape"):
        profile_model(nn.Sequential(nn.Conv3d(3, 4, 3), nn.Flatten()), torch.randn(1, 3, 8, 8))


def test_a_refusal_without_words_names_the_kind_of_error() -> None:
    class Picky(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            raise AssertionError

    with pytest.raises(UnsupportedModel, match=r"\(3, 8, 8\): AssertionError without a message\. Set"):
        profile_model(Picky(), torch.randn(1, 3, 8, 8))
