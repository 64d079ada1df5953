"""Hundreds of damaged and hostile checkpoint files: each loads or is refused, and nothing in them is run.

``SENSEAPP_FUZZ_FILES=1000`` makes it a soak.
"""

import io
import os
import pickle
import random
import struct
import tempfile
import zipfile

import pytest
import safetensors.torch
import torch

from senseapp.core.errors import InvalidCheckpoint
from senseapp.networks.checkpoints.checkpoint import read_checkpoint
from tests.cases import first_of
from tests.checkpoints import Canary

NUM_FILES = int(os.environ.get("SENSEAPP_FUZZ_FILES", "300"))
NUM_BATCHES = 10


def torch_file(payload, *, zipped):
    buffer = io.BytesIO()
    torch.save(payload, buffer, _use_new_zipfile_serialization=zipped)
    return buffer.getvalue()


def seeds_of(canary):
    """Valid and hostile files to start from, by suffix."""
    torch.manual_seed(0)
    weights = {f"layer{index}.weight": torch.randn(6, 5) for index in range(6)} | {"count": torch.tensor(3)}
    training = {"state_dict": weights, "arch": "resnet18", "optimizer": {"state": {0: torch.ones(3)}}}
    hostile = {"state_dict": weights, "hook": Canary(canary)}
    arrays = {"arrays": {name: tensor.numpy() for name, tensor in weights.items()}, "hook": Canary(canary)}
    return [
        (".pth", torch_file(weights, zipped=True)),
        (".pt", torch_file(training, zipped=True)),
        (".tar", torch_file(training, zipped=False)),
        (".bin", torch_file(weights, zipped=False)),
        (".pth", torch_file(hostile, zipped=True)),
        (".ckpt", torch_file(hostile, zipped=False)),
        (".pth", pickle.dumps(hostile)),
        (".pt", pickle.dumps(hostile, protocol=2)),
        (".pth", torch_file(arrays, zipped=True)),
        (".safetensors", safetensors.torch.save(weights)),
    ]


def flip_bytes(content, rng):
    damaged = bytearray(content)
    for _ in range(rng.choice([1, 3, 20, 200])):
        damaged[rng.randrange(len(damaged))] = rng.randrange(256)
    return bytes(damaged)


def cut(content, rng):
    return content[: rng.randrange(len(content))]


def move_a_slice(content, rng):
    start, length, target = rng.randrange(len(content)), rng.randrange(1, 200), rng.randrange(len(content))
    return content[:target] + content[start : start + length] + content[target:]


def change_a_number(content, rng):
    number = struct.pack("<q", rng.choice([-1, 0, 1, 2**31 - 1, 2**40, 2**63 - 1]))[: rng.choice([1, 2, 4, 8])]
    start = rng.randrange(len(content))
    return content[:start] + number + content[start + len(number) :]


def fill_with_zeros(content, rng):
    start = rng.randrange(len(content))
    return content[:start] + bytes(rng.randrange(1, 500)) + content[start + 1 :]


def change_the_pickle_inside(content, rng):
    """Damage only the pickle of a zip archive and pack it again, so that the archive itself is sound."""
    if not content.startswith(b"PK"):
        return flip_bytes(content, rng)
    buffer = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as source, zipfile.ZipFile(buffer, "w") as target:
        for name in source.namelist():
            inside = source.read(name)
            target.writestr(name, rng.choice(BYTE_MUTATIONS)(inside, rng) if name.endswith(".pkl") else inside)
    return buffer.getvalue()


BYTE_MUTATIONS = (flip_bytes, cut, move_a_slice, change_a_number, fill_with_zeros)
MUTATIONS = (*BYTE_MUTATIONS, change_the_pickle_inside, change_the_pickle_inside)


def refusal_of(path):
    """Return the sentence that refuses the file, or None if weights were read from it."""
    try:
        tensors = read_checkpoint(path).tensors
    except InvalidCheckpoint as error:
        return str(error)
    assert all(isinstance(tensor, torch.Tensor) for tensor in tensors.values())
    return None


@pytest.mark.parametrize("batch", first_of(range(NUM_BATCHES), 3))
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_malformed_file_is_refused_or_read_and_nothing_in_it_is_run(tmp_path, monkeypatch, batch):
    scratch, work, canary = tmp_path / "scratch", tmp_path / "work", tmp_path / "canary"
    scratch.mkdir()
    work.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    monkeypatch.chdir(scratch)
    rng = random.Random(batch)
    seeds = seeds_of(canary)
    refused = 0
    for _ in range(NUM_FILES // NUM_BATCHES):
        suffix, content = rng.choice(seeds)
        path = work / f"file{suffix}"
        path.write_bytes(rng.choice(MUTATIONS)(content, rng))
        refusal = refusal_of(path)
        refused += refusal is not None
        assert refusal is None or path.name in refusal
        path.unlink()
    assert refused > NUM_FILES // NUM_BATCHES // 3
    assert not canary.exists()
    assert list(scratch.iterdir()) == []
    assert list(work.iterdir()) == []
