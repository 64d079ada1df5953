"""Each target file, read and applied by the library it is for, does what our own ``apply`` does.

The libraries pin what clashes with ours, so they run in environments of their own (``scripts/peer_environment.py``).
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
import torch

from scripts.peer_environment import PeerFailed, ensure
from senseapp.compressions import SparsityConfig
from senseapp.layers.profile import profile_model
from senseapp.records.schedule import Schedule, ScheduleEntry
from senseapp.schedules.apply import AppliedModel, apply_schedule, configs_for
from senseapp.schedules.export.registry import FORMATS
from tests.peers.export_readers import LAYERS, a_network

SCRIPT = Path(__file__).parent.parent / "peers" / "export_readers.py"
IMAGES = torch.zeros(2, 3, 8, 8)
LEVELS = {
    "sparsity": {"conv1": 0.25, "conv2": 0.8, "fc": 0.07},
    "pruning": {"conv1": 0.25, "conv2": 0.5},
    "quantization": {"conv1": 8, "conv2": 3, "fc": 4},
}
FILES = {
    "fasterai": ("sparsity.fasterai-sparsifier.json", "pruning.fasterai-pruner.json"),
    "exports": (
        "sparsity.nni2.json",
        "sparsity.nni3.json",
        "quantization.nni2.json",
        "quantization.nni3.json",
        "quantization.torchao.json",
        "quantization.modelopt.json",
    ),
}


def a_schedule(compression: str) -> Schedule:
    entries = (
        ScheduleEntry(layer=layer, members=(layer,), compression=compression, level=level)
        for layer, level in LEVELS[compression].items()
    )
    return Schedule(model="chain", method="manual", entries=tuple(entries))


def profile():
    return profile_model(a_network(), IMAGES)


def ours(compression: str) -> AppliedModel:
    return apply_schedule(
        a_network(),
        a_schedule(compression),
        profile=profile(),
        configs=configs_for(SparsityConfig()),
        calibration=(IMAGES,),
    )


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory):
    """Return what a library did, by the name of the file; each environment is asked once."""
    folder, known = tmp_path_factory.mktemp("targets"), {}

    def read(file: str) -> dict[str, int]:
        environment = next(name for name, files in FILES.items() if file in files)
        if environment not in known:
            known[environment] = applied_there(environment, folder)
        return known[environment][file]

    return read


def applied_there(environment: str, folder: Path) -> dict[str, dict[str, int]]:
    try:
        python = ensure(environment)
    except PeerFailed as failed:
        pytest.skip(str(failed))
    for file in FILES[environment]:
        compression, target, _ = file.split(".")
        (folder / file).write_text(FORMATS[target].write(a_schedule(compression), profile()))
    command = [python, SCRIPT, *(folder / file for file in FILES[environment])]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.peer
@pytest.mark.parametrize("file", ["sparsity.fasterai-sparsifier.json", "sparsity.nni2.json", "sparsity.nni3.json"])
def test_the_same_number_of_weights_is_zeroed(file, theirs):
    """Ours zeroes the smallest floor(s n); fasterai keeps the weight at its threshold, so it zeroes one fewer."""
    applied = ours("sparsity")
    zeros = {name: int((applied.model.get_submodule(name).weight == 0).sum()) for name in LAYERS}
    assert theirs(file) == pytest.approx(zeros, abs=1)
    assert min(zeros.values()) > 10


@pytest.mark.peer
def test_fasterai_removes_as_many_channels(theirs):
    model = ours("pruning").model
    kept = {"conv1": model.conv1.out_channels, "conv2": model.conv2.out_channels, "fc": model.fc.out_features}
    assert theirs("pruning.fasterai-pruner.json") == kept == {"conv1": 12, "conv2": 10, "fc": 10}


@pytest.mark.peer
@pytest.mark.parametrize("target", ["torchao", "modelopt", "nni2", "nni3"])
def test_every_layer_gets_the_same_bits(target, theirs):
    applied = ours("quantization")
    assert theirs(f"quantization.{target}.json") == {name: applied.bits(name) for name in LAYERS}
