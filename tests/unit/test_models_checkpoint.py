"""Reading weights files: what is unwrapped, what is said about it, and what is refused."""

from __future__ import annotations

import argparse
import collections
import os
import pathlib
import pickle
import struct
import sys
import zipfile

import numpy as np
import pytest
import safetensors.torch
import torch
from torch import nn

from senseapp.core.errors import InvalidCheckpoint
from senseapp.models import weights_file
from senseapp.models.checkpoint import read_checkpoint


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


def assert_same(checkpoint, weights):
    assert set(checkpoint.tensors) == set(weights)
    for name, tensor in weights.items():
        assert torch.equal(checkpoint.tensors[name], tensor), name


@pytest.mark.parametrize("suffix", [".pth", ".pt", ".bin", ".ckpt", ".tar"])
@pytest.mark.parametrize("zipped", [True, False])
def test_a_plain_state_dict_is_read_in_both_of_torchs_forms(weights, tmp_path, suffix, zipped):
    path = save(weights, tmp_path / f"net{suffix}", _use_new_zipfile_serialization=zipped)
    checkpoint = read_checkpoint(path)
    assert_same(checkpoint, weights)
    assert checkpoint.wrapping == ()
    assert checkpoint.notes == ()


@pytest.mark.parametrize("suffix", [".safetensors", ".pth"])
def test_safetensors_are_read_whatever_their_suffix(weights, tmp_path, suffix):
    path = tmp_path / f"net{suffix}"
    safetensors.torch.save_file(weights, path)
    assert_same(read_checkpoint(path), weights)


@pytest.mark.parametrize("key", ["state_dict", "model", "model_state_dict", "net", "params", "something_else"])
def test_the_weights_are_found_under_the_usual_keys(weights, tmp_path, key):
    path = save({"epoch": 3, key: weights, "optimizer": {"state": {}, "param_groups": []}}, tmp_path / "a.pth")
    checkpoint = read_checkpoint(path)
    assert_same(checkpoint, weights)
    assert checkpoint.wrapping == (key,)


@pytest.mark.parametrize("prefixes", [("module.",), ("_orig_mod.",), ("module.", "_orig_mod."), ("model.",), ("net.",)])
def test_prefixes_of_wrappers_are_taken_off(weights, tmp_path, prefixes):
    renamed = {"".join(prefixes) + name: tensor for name, tensor in weights.items()}
    checkpoint = read_checkpoint(save({"state_dict": renamed}, tmp_path / "a.ckpt"))
    assert_same(checkpoint, weights)
    assert checkpoint.wrapping == ("state_dict", *prefixes)


def test_a_lightning_checkpoint_keeps_the_network_and_names_what_it_leaves_out(weights, tmp_path):
    state = {f"model.{name}": tensor for name, tensor in weights.items()} | {"criterion.weight": torch.ones(5)}
    payload = {"state_dict": state, "hyper_parameters": {"model_name": "resnet18"}, "callbacks": {}, "epoch": 1}
    checkpoint = read_checkpoint(save(payload, tmp_path / "last.ckpt"))
    assert_same(checkpoint, weights)
    assert checkpoint.arch_hint == "resnet18"
    assert any("criterion.weight" in note for note in checkpoint.notes)


def test_a_timm_training_checkpoint_gives_both_copies_a_choice(weights, tmp_path):
    averaged = {name: tensor * 2 for name, tensor in weights.items()}
    payload = {
        "epoch": 9,
        "arch": "resnet18",
        "state_dict": weights,
        "state_dict_ema": averaged,
        "optimizer": {"state": {0: {"momentum_buffer": torch.ones(4)}}, "param_groups": [{"lr": 0.1}]},
        "args": argparse.Namespace(model="resnet18", lr=0.1, output=pathlib.PurePosixPath("runs")),
        "metric": np.float64(0.9),
        "version": 2,
    }
    path = save(payload, tmp_path / "model_best.pth.tar")
    plain, ema = read_checkpoint(path), read_checkpoint(path, use_ema=True)
    assert_same(plain, weights)
    assert_same(ema, averaged)
    assert plain.has_ema
    assert ema.has_ema
    assert (plain.wrapping[0], ema.wrapping[0]) == ("state_dict", "state_dict_ema")
    assert plain.arch_hint == "resnet18"
    assert any("plain ones are used" in note for note in plain.notes)
    assert any("averaged (EMA) ones are used" in note for note in ema.notes)


def test_the_architecture_is_also_found_in_pickled_arguments(weights, tmp_path):
    path = save({"model": weights, "args": argparse.Namespace(arch="vit_tiny")}, tmp_path / "a.pth")
    assert read_checkpoint(path).arch_hint == "vit_tiny"


def test_averaged_weights_that_are_not_there_are_refused(weights, tmp_path):
    with pytest.raises(InvalidCheckpoint, match="no averaged"):
        read_checkpoint(save(weights, tmp_path / "a.pth"), use_ema=True)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_number_formats_are_announced(weights, tmp_path, dtype):
    cast = {name: tensor.to(dtype) if tensor.is_floating_point() else tensor for name, tensor in weights.items()}
    checkpoint = read_checkpoint(save(cast, tmp_path / "a.pth"))
    assert any(str(dtype).removeprefix("torch.") in note and "float32" in note for note in checkpoint.notes)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_weights_that_are_not_finite_are_named(weights, tmp_path, value, dtype):
    weights["fc.weight"] = weights["fc.weight"].to(dtype)
    weights["fc.weight"][1, 2] = value
    notes = read_checkpoint(save(weights, tmp_path / "a.pth")).notes
    assert any("fc.weight" in note and "NaN or infinite" in note for note in notes)


def test_tied_weights_are_no_bomb(tmp_path):
    shared = torch.ones(100, 100)
    path = save({"a.weight": shared, "b.weight": shared, "c.weight": shared.t()}, tmp_path / "a.pth")
    assert len(read_checkpoint(path).tensors) == 3


class Exploit:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.system, (f"touch {self.path}",)


def code_in_zip(path, canary):
    torch.save({"state_dict": Exploit(canary)}, path)


def code_in_legacy(path, canary):
    torch.save({"state_dict": Exploit(canary)}, path, _use_new_zipfile_serialization=False)


def code_in_pickle(path, canary):
    path.write_bytes(pickle.dumps(Exploit(canary)))


def code_in_old_pickle(path, canary):
    path.write_bytes(pickle.dumps({"state_dict": Exploit(canary)}, protocol=2))


def code_in_newer_protocol(path, canary):
    torch.save({"state_dict": Exploit(canary)}, path, pickle_protocol=4)


@pytest.mark.parametrize(
    "write", [code_in_zip, code_in_legacy, code_in_pickle, code_in_old_pickle, code_in_newer_protocol]
)
def test_code_is_never_run_and_its_name_is_given(tmp_path, write):
    canary = tmp_path / "canary"
    write(tmp_path / "evil.pth", canary)
    with pytest.raises(InvalidCheckpoint, match=r"(posix|nt)\.system") as refused:
        read_checkpoint(tmp_path / "evil.pth")
    assert not canary.exists()
    assert "torch.save(model.state_dict()" in str(refused.value)


def test_a_whole_pickled_network_is_refused_by_its_class(tmp_path):
    with pytest.raises(InvalidCheckpoint, match=r"holds .*(Linear|Sequential).*not opened"):
        read_checkpoint(save(nn.Sequential(nn.Linear(2, 2)), tmp_path / "net.pth"))


def test_an_allocation_hidden_in_the_pickle_is_refused(tmp_path):
    class Greedy:
        def __reduce__(self):
            return bytearray, (10**12,)

    with pytest.raises(InvalidCheckpoint, match="bytearray"):
        read_checkpoint(save({"model": Greedy()}, tmp_path / "a.pth"))


def test_a_tensor_that_claims_more_than_the_file_holds_is_refused(tmp_path):
    path = save({"a.weight": torch.ones(1).expand(10**6, 10**6)}, tmp_path / "a.pth")
    with pytest.raises(InvalidCheckpoint, match="claim"):
        read_checkpoint(path)


def test_a_torchscript_archive_is_refused_with_the_way_to_save_its_weights(tmp_path):
    path = tmp_path / "scripted.pt"
    with zipfile.ZipFile(path, "w") as archive:
        for name in ("scripted/data.pkl", "scripted/constants.pkl", "scripted/code/__torch__.py", "scripted/version"):
            archive.writestr(name, b"")
    with pytest.raises(InvalidCheckpoint, match=r"TorchScript.*torch\.jit\.load"):
        read_checkpoint(path)


def test_a_real_torchscript_archive_is_refused(tmp_path):
    path = tmp_path / "scripted.pt"
    torch.jit.save(torch.jit.trace(nn.Linear(2, 2), torch.ones(1, 2)), str(path))
    with pytest.raises(InvalidCheckpoint, match="TorchScript"):
        read_checkpoint(path)


@pytest.mark.parametrize("share", [0.0001, 0.1, 0.5, 0.9, 0.999])
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
    with pytest.raises(InvalidCheckpoint, match=r"damaged|cut short|not a file|text file"):
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


@pytest.mark.parametrize("name", ["net.onnx", "net.zip", "net", "net.txt"])
def test_other_suffixes_are_refused(weights, tmp_path, name):
    with pytest.raises(InvalidCheckpoint, match=r"ends in one of \.pth"):
        read_checkpoint(save(weights, tmp_path / name))


def test_a_torch_file_called_safetensors_is_refused_with_the_remedy(weights, tmp_path):
    with pytest.raises(InvalidCheckpoint, match=r"Rename it to end in \.pth"):
        read_checkpoint(save(weights, tmp_path / "net.safetensors"))


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(InvalidCheckpoint, match="no checkpoint file"):
        read_checkpoint(tmp_path / "gone.pth")


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


@pytest.mark.parametrize("payload", [[1, 2], {"epoch": 3}, {}, {"model": {"a": 1}}, torch.ones(3), {3: torch.ones(2)}])
def test_a_file_without_named_weights_is_refused(tmp_path, payload):
    with pytest.raises(InvalidCheckpoint, match=r"no weights by layer name|not a dict"):
        read_checkpoint(save(payload, tmp_path / "a.pth"))


def test_sparse_weights_are_refused(tmp_path):
    with pytest.raises(InvalidCheckpoint, match=r"a.weight|_rebuild_sparse_tensor"):
        read_checkpoint(save({"a.weight": torch.eye(3).to_sparse()}, tmp_path / "a.pth"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("filling", "said"), [(b"N0" * 15_000, "20,000 steps"), (b"X\x00\x00\x00\x01" + b"a" * 2**24, "16 MB")]
)
def test_a_huge_pickle_is_not_looked_through_for_long(tmp_path, monkeypatch, filling, said):
    monkeypatch.setattr(weights_file, "_MAX_OPCODES", 20_000)
    path = tmp_path / "a.pth"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a/data.pkl", b"\x80\x02" + filling + b".")
    with pytest.raises(InvalidCheckpoint, match=said):
        read_checkpoint(path)


def test_nested_dicts_end_the_search(tmp_path):
    payload: dict = {"weight": torch.ones(1)}
    for _ in range(50):
        payload = {"model": payload}
    with pytest.raises(InvalidCheckpoint, match="no weights"):
        read_checkpoint(save(payload, tmp_path / "a.pth"))


def test_an_ordered_dict_with_metadata_is_plain(tmp_path, weights):
    assert isinstance(weights, collections.OrderedDict)
    assert hasattr(weights, "_metadata")
    assert_same(read_checkpoint(save(weights, tmp_path / "a.pth")), weights)


def test_the_class_that_stands_for_harmless_records_is_not_left_allowed(weights, tmp_path):
    before = set(torch.serialization.get_safe_globals())
    read_checkpoint(save(weights, tmp_path / "a.pth"))
    assert set(torch.serialization.get_safe_globals()) == before


@pytest.mark.skipif(sys.platform != "linux", reason="counts open files in /proc")
def test_no_file_stays_open_after_a_refusal(tmp_path):
    path = tmp_path / "a.pth"
    path.write_bytes(b"PK\x03\x04junk")
    with pytest.raises(InvalidCheckpoint):
        read_checkpoint(path)
    open_files = {entry.readlink() for entry in pathlib.Path("/proc/self/fd").iterdir() if entry.is_symlink()}
    assert path not in open_files


def test_a_small_file_of_a_compressed_model_is_refused_with_what_to_bring_instead(tmp_path):
    small = tmp_path / "compressed.int.safetensors.gz"
    small.write_bytes(b"weights")
    with pytest.raises(InvalidCheckpoint, match="holds weights as integers, which is not read here"):
        read_checkpoint(str(small))
