"""The small files beside the plain state dict: read by the lines that are shown, equal to it, and small."""

import gzip
from dataclasses import replace
from pathlib import Path

import pytest
import safetensors.torch
import torch
from torch import Tensor, nn

from senseapp.compressions import QuantizationConfig, SparsityConfig
from senseapp.core.errors import InvalidSpec
from senseapp.networks.profile import profile_model
from senseapp.reconstruct.apply import apply_schedule, configs_for
from senseapp.reconstruct.repair import Reference, matching_of
from senseapp.reconstruct.write import stored_integers, write_compressed
from senseapp.records.deployment import INTEGERS, SPARSE
from senseapp.records.schedule import Schedule, ScheduleEntry

IMAGES = torch.randn(64, 3, 8, 8, generator=torch.Generator().manual_seed(3))


class Network(nn.Module):
    """Convolutions of every kind, tied weights, and names that a reader could take for its own."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 32, 3, groups=32), nn.ConvTranspose2d(32, 64, 2), nn.ReLU()
        )
        self.scale = nn.Parameter(torch.ones(64))
        self.norm = nn.LayerNorm(64)
        self.head, self.again = nn.Linear(64, 64), nn.Linear(64, 64)
        self.again.weight = self.head.weight

    def forward(self, images: Tensor) -> Tensor:
        return self.again(self.head(self.norm(self.body(images).mean((2, 3)) * self.scale)).relu())


def a_network() -> nn.Module:
    torch.manual_seed(0)
    return Network().eval()


def applied(*parts: tuple[str, float], config: QuantizationConfig | None = None):
    """Apply each (compression, level) to all layers of a new network."""
    model = a_network()
    profile = profile_model(model, IMAGES[:2])
    entries = tuple(
        ScheduleEntry(layer=layer.name, members=(layer.name,), compression=kind, level=level)
        for kind, level in parts
        for layer in profile.layers
        if layer.name != "again"  # its weight is that of the head
    )
    return apply_schedule(
        model,
        Schedule(model="net", method="manual", entries=entries),
        profile=profile,
        configs=configs_for(SparsityConfig(), config or QuantizationConfig()),
        calibration=(IMAGES,),
    )


def read_by_the_shown_lines(form, path: Path) -> dict[str, Tensor]:
    names: dict[str, dict[str, Tensor]] = {}
    exec(form.reader(str(path)), names)  # the very lines that people are told to run
    return names["weights"]


def assert_same_weights(form, tmp_path: Path, model: nn.Module) -> None:
    plain = safetensors.torch.load_file(tmp_path / "x.safetensors")
    weights = read_by_the_shown_lines(form, tmp_path / f"x{form.suffix}")
    assert weights.keys() == plain.keys()
    assert all(torch.equal(weights[name], plain[name]) and weights[name].dtype == plain[name].dtype for name in plain)
    fresh = a_network()
    fresh.load_state_dict(weights, strict=True)
    torch.testing.assert_close(dict(fresh.named_parameters()), dict(model.named_parameters()), rtol=0.0, atol=0.0)


@pytest.mark.parametrize("zeros", [0.5, 0.9])
def test_zeros_are_compressed(zeros, tmp_path):
    compressed = applied(("sparsity", zeros))
    files, notes = write_compressed(compressed, tmp_path / "x.safetensors", IMAGES[:1])
    assert ([path.name for path in files], notes) == (["x.safetensors", "x.sparse.safetensors.gz"], ())
    assert_same_weights(SPARSE, tmp_path, compressed.model)
    assert files[1].stat().st_size < (1.15 - zeros) * files[0].stat().st_size


@pytest.mark.parametrize("bits", [8, 5, 4, 3, 2])
@pytest.mark.parametrize("granularity", ["channel", "tensor"])
def test_quantized_weights_are_integers_with_their_scales(bits, granularity, tmp_path):
    compressed = applied(("quantization", bits), config=QuantizationConfig(granularity=granularity))
    files, notes = write_compressed(compressed, tmp_path / "x.safetensors", IMAGES[:1])
    assert ([path.name for path in files], notes) == (["x.safetensors", "x.int.safetensors.gz"], ())
    assert_same_weights(INTEGERS, tmp_path, compressed.model)
    stored = safetensors.torch.load(gzip.decompress(files[1].read_bytes()))
    values, scale = stored["body.3.weight"], stored["body.3.weight.scale"]
    assert (values.dtype, values.shape) == (torch.int8, (32, 64, 2, 2))
    assert int(values.abs().max()) == 2 ** (bits - 1) - 1
    assert scale.shape == ((1, 64, 1, 1) if granularity == "channel" else (1, 1, 1, 1))
    assert stored["head.weight"].dtype is stored["again.weight"].dtype is torch.int8
    assert stored["head.bias"].dtype is stored["scale"].dtype is torch.float32


def test_zeros_and_bits_go_into_one_file(tmp_path):
    sizes = {}
    for parts in [(("quantization", 4),), (("sparsity", 0.8), ("quantization", 4))]:
        compressed = applied(*parts)
        files, _ = write_compressed(compressed, tmp_path / "x.safetensors", IMAGES[:1])
        assert_same_weights(INTEGERS, tmp_path, compressed.model)
        sizes[len(parts)] = files[1].stat().st_size
    assert sizes[2] < 0.75 * sizes[1]


def test_floats_of_eight_bits_are_stored_as_such(tmp_path):
    compressed = applied(("quantization", 8), config=QuantizationConfig(number_format="fp8_e4m3"))
    write_compressed(compressed, tmp_path / "x.safetensors", IMAGES[:1])
    assert_same_weights(INTEGERS, tmp_path, compressed.model)
    stored = safetensors.torch.load(gzip.decompress((tmp_path / "x.int.safetensors.gz").read_bytes()))
    assert stored["head.weight"].dtype is torch.float8_e4m3fn


def test_channels_that_repair_has_multiplied_keep_their_integers(tmp_path):
    compressed = applied(("quantization", 4))
    before = compressed.integers
    matching = matching_of(compressed, Reference(a_network(), [IMAGES]), scale=True)
    assert matching.fit()
    _, notes = write_compressed(compressed, tmp_path / "x.safetensors", IMAGES[:1])
    assert notes == ()
    assert_same_weights(INTEGERS, tmp_path, compressed.model)
    after = stored_integers(tmp_path / "x.safetensors", compressed.after)
    assert set(after) == {*before, "again"}  # which has the weight of the head
    assert all(torch.equal(after[name].values, before[name].values) for name in before)
    assert not torch.equal(after["body.0"].scale, before["body.0"].scale)
    matching.undo()
    assert all(torch.equal(compressed.integers[name].scale, before[name].scale) for name in before)


def test_weights_without_scales_stay_as_they_are_and_it_is_said(tmp_path):
    compressed = applied(("quantization", 4))
    grids = {name: grid for name, grid in compressed.grids.items() if name != "body.0"}
    compressed = replace(compressed, grids=grids)
    _, notes = write_compressed(compressed, tmp_path / "x.safetensors", IMAGES[:1])
    assert notes[0].startswith("1 quantized weights are no multiples of one scale per channel")
    assert "first: body.0.weight" in notes[0]
    assert_same_weights(INTEGERS, tmp_path, compressed.model)


def test_a_half_precision_weight_is_no_integer_times_float32():
    network = a_network().bfloat16()
    profile = profile_model(network, IMAGES[:1].bfloat16())
    entry = ScheduleEntry(layer="head", members=("head",), compression="quantization", level=4)
    schedule = Schedule(model="net", method="manual", entries=(entry,))
    half = apply_schedule(network, schedule, profile=profile, configs=configs_for(), calibration=(IMAGES.bfloat16(),))
    assert half.integers == {}


def test_a_wrong_suffix_is_refused_before_anything_is_computed(tmp_path):
    with pytest.raises(InvalidSpec, match="got 'no suffix'"):
        write_compressed(None, tmp_path / "x", IMAGES[:1])
