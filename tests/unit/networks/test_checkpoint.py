"""Reading weights files: what is read, what is said about it, and what is refused."""

import argparse
import pathlib
import pickle
import struct
import zipfile
from dataclasses import replace

import numpy as np
import pytest
import safetensors.torch
import torch
from torch import nn

from senseapp.core.errors import InvalidCheckpoint
from senseapp.networks.checkpoints import pickled
from senseapp.networks.checkpoints.checkpoint import number_notes, read_checkpoint
from tests.checkpoints import Canary


class TinyNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.bn = nn.BatchNorm2d(4)
        self.fc = nn.Linear(4, 5)


@pytest.fixture
def weights():
    torch.manual_seed(0)
    return TinyNet().state_dict()


def save(payload, path, **kwargs):
    torch.save(payload, path, **kwargs)
    return path


def assert_same(checkpoint, weights, prefix=""):
    found = {name: tensor for name, tensor in checkpoint.tensors.items() if name.startswith(prefix)}
    assert list(found) == [prefix + name for name in weights]
    for name, tensor in weights.items():
        assert torch.equal(found[prefix + name], tensor), name


@pytest.mark.parametrize(("suffix", "zipped"), [(".pth", True), (".bin", True), (".ckpt", False), (".tar", False)])
def test_a_plain_state_dict_is_read_in_both_of_torchs_forms(weights, tmp_path, suffix, zipped):
    checkpoint = read_checkpoint(save(weights, tmp_path / f"net{suffix}", _use_new_zipfile_serialization=zipped))
    assert_same(checkpoint, weights)
    assert checkpoint.notes == ()


@pytest.mark.parametrize("suffix", [".safetensors", ".pth"])
def test_safetensors_are_read_whatever_their_suffix(weights, tmp_path, suffix):
    path = tmp_path / f"net{suffix}"
    safetensors.torch.save_file(weights, path)
    found = read_checkpoint(path)
    assert_same(replace(found, tensors=dict(sorted(found.tensors.items()))), dict(sorted(weights.items())))
    assert not found.keeps_order


def test_tensors_are_named_by_the_way_that_leads_to_them(weights, tmp_path):
    averaged = {name: tensor * 2 for name, tensor in weights.items()}
    payload = {
        "epoch": 9,
        "arch": "resnet18",
        "state_dict": weights,
        "ema": {"module": averaged},
        "optimizer": {"state": {0: {"momentum_buffer": torch.ones(4)}}, "param_groups": [{"lr": 0.1}]},
        "args": argparse.Namespace(model="resnet18", lr=0.1, output=pathlib.PurePosixPath("runs")),
        "metric": np.float64(0.9),
    }
    checkpoint = read_checkpoint(save(payload, tmp_path / "model_best.pth.tar"))
    assert_same(checkpoint, weights, "state_dict.")
    assert_same(checkpoint, averaged, "ema.module.")
    assert torch.equal(checkpoint.tensors["optimizer.state.0.momentum_buffer"], torch.ones(4))
    assert len(checkpoint.tensors) == 2 * len(weights) + 1
    assert checkpoint.arch_hint == "resnet18"


@pytest.mark.parametrize(
    "settings", [{"hyper_parameters": {"model_name": "vit_tiny"}}, {"args": argparse.Namespace(arch="vit_tiny")}]
)
def test_the_architecture_is_found_in_the_settings(weights, tmp_path, settings):
    assert read_checkpoint(save({"state_dict": weights, **settings}, tmp_path / "last.ckpt")).arch_hint == "vit_tiny"


@pytest.mark.parametrize(("value", "dtype"), [(float("nan"), torch.float32), (-float("inf"), torch.float16)])
def test_weights_that_are_not_finite_are_named(weights, tmp_path, value, dtype):
    weights["fc.weight"] = weights["fc.weight"].to(dtype)
    weights["fc.weight"][1, 2] = value
    notes = number_notes(read_checkpoint(save(weights, tmp_path / "a.pth")).tensors)
    assert any("fc.weight" in note and "NaN or infinite" in note for note in notes)


def test_tied_weights_are_no_bomb(tmp_path):
    shared = torch.ones(100, 100)
    path = save({"a.weight": shared, "b.weight": shared, "c.weight": shared.t()}, tmp_path / "a.pth")
    assert len(read_checkpoint(path).tensors) == 3


WRITERS = {
    "zip": lambda payload, path: torch.save(payload, path),
    "older form": lambda payload, path: torch.save(payload, path, _use_new_zipfile_serialization=False),
}


@pytest.mark.parametrize("form", WRITERS)
def test_code_is_never_run_and_its_name_is_given(tmp_path, form):
    canary = tmp_path / "canary"
    WRITERS[form]({"state_dict": Canary(canary)}, tmp_path / "evil.pth")
    with pytest.raises(InvalidCheckpoint, match=r"(posix|nt)\.system") as refused:
        read_checkpoint(tmp_path / "evil.pth")
    assert not canary.exists()
    assert "torch.save(model.state_dict()" in str(refused.value)


def test_a_torchscript_archive_is_refused_with_the_way_to_export_it(tmp_path):
    path = tmp_path / "scripted.pt"
    torch.jit.save(torch.jit.trace(nn.Linear(2, 2), torch.ones(1, 2)), str(path))
    with pytest.raises(InvalidCheckpoint, match=r"TorchScript.*torch\.jit\.load"):
        read_checkpoint(path)


@pytest.mark.parametrize("share", [0.0001, 0.5, 0.999])
@pytest.mark.parametrize("form", ["zip", "legacy", "safetensors"])
def test_a_truncated_file_is_refused(tmp_path, share, form):
    weights = {f"layer{index}.weight": torch.ones(40, 40) for index in range(5)}
    path = tmp_path / ("net.safetensors" if form == "safetensors" else "net.pth")
    if form == "safetensors":
        safetensors.torch.save_file(weights, path)
    else:
        save(weights, path, _use_new_zipfile_serialization=form == "zip")
    whole = path.read_bytes()
    path.write_bytes(whole[: max(1, int(share * len(whole)))])
    with pytest.raises(InvalidCheckpoint, match=r"^(?!.*zip).*(damaged|cut short|not a file|text file)"):
        read_checkpoint(path)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "empty"),
        (b"not weights at all\n" * 10, "text file"),
        ("ü" * 3000, "text file"),
        (b"\0" * 10_000, "zeros"),
        (b"\x1f\x8b" + b"\x00" * 50, "gzip"),
        (b"\x89PNG\r\n\x1a\n", "picture"),
        (b"\x89HDF\r\n\x1a\n", "HDF5"),
        (b"version https://git-lfs.github.com/spec/v1\n", "Git LFS"),
        (pickle.dumps({"weight": torch.ones(1)}), "a pickle that torch.save did not write"),
        (bytes(range(256)) * 3, "not a file that PyTorch"),
    ],
)
def test_files_of_other_kinds_are_named(tmp_path, content, said):
    path = tmp_path / "net.pth"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(InvalidCheckpoint, match=said):
        read_checkpoint(path)


def test_five_gigabytes_of_zeros_are_refused_at_once(tmp_path):
    path = tmp_path / "zeros.pth"
    with path.open("wb") as file:
        file.truncate(5_000_000_000)
    with pytest.raises(InvalidCheckpoint, match="zeros"):
        read_checkpoint(path)


@pytest.mark.parametrize("name", ["net.zip", "net"])
def test_other_suffixes_and_missing_files_are_refused(weights, tmp_path, name):
    with pytest.raises(InvalidCheckpoint, match=r"ends in one of \.pth"):
        read_checkpoint(save(weights, tmp_path / name))
    with pytest.raises(InvalidCheckpoint, match="no checkpoint file"):
        read_checkpoint(tmp_path / f"gone {name}")


def test_a_torch_file_called_safetensors_is_refused_with_the_remedy(weights, tmp_path):
    with pytest.raises(InvalidCheckpoint, match=r"Rename it to end in \.pth"):
        read_checkpoint(save(weights, tmp_path / "net.safetensors"))


def test_a_compressed_archive_is_refused_before_it_is_unpacked(tmp_path):
    path = tmp_path / "bomb.pth"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("bomb/data.pkl", b"\0" * 50_000_000)
    assert path.stat().st_size < 100_000
    with pytest.raises(InvalidCheckpoint, match="compressed archive"):
        read_checkpoint(path)


def test_more_tensors_than_any_checkpoint_has_are_refused_before_they_are_read(tmp_path):
    header = ",".join(f'"t{n}":{{"dtype":"F32","shape":[0],"data_offsets":[0,0]}}' for n in range(30_001)).join("{}")
    (tmp_path / "many.safetensors").write_bytes(struct.pack("<Q", len(header)) + header.encode())
    with pytest.raises(InvalidCheckpoint, match="names 30,001 tensors; a checkpoint has at most 30,000"):
        read_checkpoint(tmp_path / "many.safetensors")


def test_a_zip_of_other_things_is_refused(tmp_path):
    path = tmp_path / "photos.pth"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("cat/1.jpg", b"x")
    with pytest.raises(InvalidCheckpoint, match=r"torch.save did not write"):
        read_checkpoint(path)


class Greedy:
    """Hides an allocation in its pickle."""

    def __reduce__(self):
        return bytearray, (10**12,)


WITHOUT = r"no weights by layer name; it holds"
NESTED: dict = {"weight": torch.ones(1)}
for _ in range(50):
    NESTED = {"model": NESTED}


@pytest.mark.parametrize(
    ("payload", "said"),
    [
        *(
            (payload, WITHOUT)
            for payload in ([1, 2], {"epoch": 3}, {}, {"model": {"a": 1}}, torch.ones(3), None, "text")
        ),
        pytest.param(NESTED, WITHOUT, id="nested dicts"),
        ({"model": Greedy()}, "bytearray"),
        ({"a.weight": torch.ones(1).expand(10**6, 10**6)}, "claim far more bytes than the file has"),
    ],
)
def test_a_file_without_weights_that_can_be_read_is_refused(tmp_path, payload, said):
    with pytest.raises(InvalidCheckpoint, match=said):
        read_checkpoint(save(payload, tmp_path / "a.pth"))


def test_a_huge_pickle_is_not_looked_through_for_long(tmp_path, monkeypatch):
    monkeypatch.setattr(pickled, "MAX_STEPS", 20_000)
    path = tmp_path / "a.pth"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a/data.pkl", b"\x80\x02" + b"N0" * 15_000 + b".")
    with pytest.raises(InvalidCheckpoint, match="20,000 steps"):
        read_checkpoint(path)


def test_a_small_file_of_a_compressed_model_is_refused_with_what_to_bring_instead(tmp_path):
    small = tmp_path / "compressed.int.safetensors.gz"
    small.write_bytes(b"weights")
    with pytest.raises(InvalidCheckpoint, match="holds weights as integers, which is not read here"):
        read_checkpoint(str(small))
