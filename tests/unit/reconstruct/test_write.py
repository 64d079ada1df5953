import os
import zipfile
from pathlib import Path

import onnx
import pytest
import safetensors.torch
import torch
from onnx.reference import ReferenceEvaluator
from torch import nn

from senseapp.compressions import PruningConfig, SparsityConfig
from senseapp.core.errors import InvalidSpec
from senseapp.networks.profile import profile_model
from senseapp.reconstruct.apply import apply_schedule, configs_for
from senseapp.reconstruct.write import write_compressed
from senseapp.records.schedule import Schedule, ScheduleEntry

pytestmark = pytest.mark.slow  # exports a network for onnxruntime, which takes a second each time

IMAGES = torch.randn(5, 1, 8, 8, generator=torch.Generator().manual_seed(3))


def a_network(*, tied: bool = False) -> nn.Module:
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 8)
    )
    network.append(nn.Linear(8, 8))
    if tied:
        network[6].weight = network[5].weight
    return network.eval()


class FixedSize(nn.Module):
    """Reads its batch size as a number, so that it can only be exported for one."""

    def __init__(self) -> None:
        super().__init__()
        self.body = a_network()

    def forward(self, images):
        if images.shape[0] > 1 and images.shape[0] % 2:
            return self.body(images) + 0.0
        return self.body(images)


def applied_to(model, compression, level, config, layer="0"):
    entry = ScheduleEntry(layer=layer, members=(layer,), compression=compression, level=level)
    return apply_schedule(
        model,
        Schedule(model="net", method="manual", entries=(entry,)),
        profile=profile_model(model, IMAGES[:2]),
        configs=configs_for(config),
        calibration=(IMAGES,),
    )


@pytest.mark.parametrize("suffix", [".safetensors", ".pth", ".pt", ".bin"])
def test_the_same_architecture_loads_the_weights_strictly(suffix, tmp_path):
    applied = applied_to(a_network(), "sparsity", 0.5, SparsityConfig())
    path = tmp_path / "new" / f"weights{suffix}"
    files, notes = write_compressed(applied, path, IMAGES[:1])
    assert (files, notes) == ((path, path.with_suffix(".sparse.safetensors.gz")), ())
    state = safetensors.torch.load_file(path) if suffix == ".safetensors" else torch.load(path, weights_only=True)
    fresh = a_network()
    fresh.load_state_dict(state, strict=True)
    assert int((fresh[0].weight == 0).sum()) == 36
    assert torch.equal(fresh(IMAGES), applied.model(IMAGES))


def test_tied_and_channels_last_weights_are_written(tmp_path):
    model = a_network(tied=True).to(memory_format=torch.channels_last)
    applied = applied_to(model, "sparsity", 0.5, SparsityConfig(), layer="5")
    write_compressed(applied, tmp_path / "x.safetensors", IMAGES[:1])
    fresh = a_network(tied=True)
    fresh.load_state_dict(safetensors.torch.load_file(tmp_path / "x.safetensors"), strict=True)
    assert torch.equal(fresh[5].weight, applied.model[6].weight)


def test_a_pruned_network_is_written_whole_for_any_number_of_images(tmp_path):
    applied = applied_to(a_network(), "pruning", 0.5, PruningConfig())
    files, notes = write_compressed(applied, tmp_path / "x.safetensors", IMAGES[:1])
    assert ([path.name for path in files], notes) == (["x.safetensors", "x.pt2", "x.onnx"], ())
    with torch.no_grad():
        expected = applied.model(IMAGES)
    torch.testing.assert_close(torch.export.load(tmp_path / "x.pt2").module()(IMAGES), expected)
    graph = onnx.load(tmp_path / "x.onnx")
    onnx.checker.check_model(graph)
    (output,) = ReferenceEvaluator(graph).run(None, {graph.graph.input[0].name: IMAGES.numpy()})
    torch.testing.assert_close(torch.from_numpy(output), expected, atol=1e-5, rtol=1e-4)


def test_programs_do_not_tell_where_their_source_lay(tmp_path):
    applied = applied_to(a_network(), "pruning", 0.5, PruningConfig())
    write_compressed(applied, tmp_path / "x.safetensors", IMAGES[:1])
    with zipfile.ZipFile(tmp_path / "x.pt2") as program:
        written = b"".join(program.read(name) for name in program.namelist())
    for content in (written, (tmp_path / "x.onnx").read_bytes()):
        assert b"site-packages" not in content
        assert os.fsencode(Path(__file__).parent) not in content


def test_a_network_that_reads_its_batch_size_is_written_for_one_image(tmp_path):
    applied = applied_to(FixedSize(), "pruning", 0.5, PruningConfig(), layer="body.0")
    write_compressed(applied, tmp_path / "x.pth", IMAGES[:1])
    program = torch.export.load(tmp_path / "x.pt2").module()
    torch.testing.assert_close(program(IMAGES[:1]), applied.model(IMAGES[:1]))


def test_an_unknown_form_is_refused(tmp_path):
    applied = applied_to(a_network(), "sparsity", 0.5, SparsityConfig())
    with pytest.raises(InvalidSpec, match=r"\.safetensors, \.pth.* got '\.h5'"):
        write_compressed(applied, tmp_path / "x.h5", IMAGES[:1])
    assert list(tmp_path.iterdir()) == []
