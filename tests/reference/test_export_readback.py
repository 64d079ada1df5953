"""Each target file, read and applied by the library it is for.

The libraries pin what clashes with ours, so each runs in an environment of its own: ``SENSEAPP_PEER_ENVS`` names a
folder with ``fasterai``, ``nni``, ``torchao`` and ``modelopt`` in it, each a virtual environment that can import that
library and torch (fasterai 0.3.2, nni 3.0, torchao 0.18, modelopt 0.47 were tried). ``scripts`` below get the target
file and print what they found per layer as their last line, as JSON.
"""

import json
import os
import subprocess
from pathlib import Path

import pytest

from senseapp.export import FORMATS
from senseapp.results import Schedule, ScheduleEntry
from tests.schedule_cases import profile_of

ENVIRONMENTS = os.environ.get("SENSEAPP_PEER_ENVS", "")
pytestmark = pytest.mark.skipif(
    not ENVIRONMENTS, reason="SENSEAPP_PEER_ENVS does not name a folder with environments of the other libraries"
)

SIZES = {"conv1": 3 * 16 * 9, "conv2": 16 * 20 * 9, "fc": 200}
FRACTIONS = {"conv1": 0.25, "conv2": 0.8, "fc": 0.07}
BITS = {"conv1": 8, "conv2": 3, "fc": 4}

NETWORK = """
import json, sys, torch
from torch import nn
class Chain(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 3, padding=1)
        self.conv2 = nn.Conv2d(16, 20, 3, padding=1)
        self.fc = nn.Linear(20, 10)
    def forward(self, x):
        return self.fc(self.conv2(self.conv1(x).relu()).relu().mean((2, 3)))
torch.manual_seed(0)
model, file = Chain().eval(), json.load(open(sys.argv[1]))
layers = ("conv1", "conv2", "fc")
"""

FASTERAI_SPARSIFIER = """
from fasterai.core.criteria import large_final
from fasterai.sparse.sparsifier import Sparsifier
Sparsifier(model, "weight", "local", large_final, layer_type=(nn.Conv2d, nn.Linear)).sparsify_model(file)
print(json.dumps({name: int((getattr(model, name).weight == 0).sum()) for name in layers}))
"""

FASTERAI_PRUNER = """
from fasterai.core.criteria import large_final
from fasterai.prune.pruner import Pruner
Pruner(model, file, "local", large_final, example_inputs=torch.zeros(1, 3, 8, 8)).prune_model()
print(json.dumps({"conv1": model.conv1.out_channels, "conv2": model.conv2.out_channels, "fc": model.fc.out_features}))
"""

NNI_PRUNER = """
from nni.compression.base.config import trans_legacy_config_list
from nni.compression.pruning import LevelPruner
_, masks = LevelPruner(model, trans_legacy_config_list(file)).compress()
print(json.dumps({name: int((mask["weight"] == 0).sum()) for name, mask in masks.items()}))
"""

NNI_QUANTIZER = """
from nni.compression.base.config import default_config_schema, trans_legacy_config_list
found = {}
for entry in trans_legacy_config_list(file):
    default_config_schema("quantization").validate({"quant_dtype": None, **entry})
    settings = entry.get("target_settings", {}).get("weight", entry)
    found[entry["op_names"][0]] = int(settings["quant_dtype"].removeprefix("int"))
print(json.dumps(found))
"""

TORCHAO = """
from torchao.core.config import config_from_dict, config_to_dict
from torchao.quantization import quantize_
config = config_from_dict(file)
assert config_to_dict(config) == file, config_to_dict(config)
quantize_(model, config, filter_fn=None)
model(torch.zeros(1, 3, 8, 8))
bits = {name: int(str(getattr(model, name).weight.target_dtype).removeprefix("torch.int")) for name in layers}
print(json.dumps(bits))
"""

MODELOPT = """
import modelopt.torch.quantization as mtq
quantized = mtq.quantize(model, file, lambda net: net(torch.randn(4, 3, 8, 8)))
found = {}
for name in layers:
    layer = getattr(quantized, name)
    assert layer.weight_quantizer.is_enabled and not layer.input_quantizer.is_enabled
    rounded = layer.weight_quantizer(layer.weight)
    most = max(len(row.unique()) for row in rounded.flatten(1))
    assert most <= 2 ** layer.weight_quantizer.num_bits, most
    found[name] = layer.weight_quantizer.num_bits
print(json.dumps(found))
"""


def read_by(environment, script, target, compression, levels, tmp_path):
    entries = [
        ScheduleEntry(layer=layer, members=(layer,), compression=compression, level=level)
        for layer, level in levels.items()
    ]
    schedule = Schedule(model="toy", method="manual", entries=tuple(entries))
    path = tmp_path / "target.json"
    path.write_text(FORMATS[target].write(schedule, profile_of(SIZES)))
    python = Path(ENVIRONMENTS) / environment / "bin" / "python"
    if not python.exists():
        pytest.skip(f"{environment} has no environment of its own here")
    done = subprocess.run(
        [str(python), "-c", NETWORK + script, str(path)], capture_output=True, text=True, timeout=240, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.strip().splitlines()[-1])


@pytest.mark.parametrize(
    ("environment", "script", "target"),
    [
        ("fasterai", FASTERAI_SPARSIFIER, "fasterai-sparsifier"),
        ("nni", NNI_PRUNER, "nni2"),
        ("nni", NNI_PRUNER, "nni3"),
    ],
)
def test_the_same_number_of_weights_is_zeroed(environment, script, target, tmp_path):
    """Ours zeroes the smallest floor(s n); fasterai keeps the weight at its threshold, so it zeroes one fewer."""
    zeros = read_by(environment, script, target, "sparsity", FRACTIONS, tmp_path)
    assert zeros == pytest.approx({layer: int(FRACTIONS[layer] * SIZES[layer]) for layer in SIZES}, abs=1)


def test_fasterai_removes_the_same_channels(tmp_path):
    levels = {"conv1": 0.25, "conv2": 0.5}
    kept = read_by("fasterai", FASTERAI_PRUNER, "fasterai-pruner", "pruning", levels, tmp_path)
    assert kept == {"conv1": 12, "conv2": 10, "fc": 10}


@pytest.mark.parametrize(
    ("environment", "script", "target"),
    [
        ("torchao", TORCHAO, "torchao"),
        ("modelopt", MODELOPT, "modelopt"),
        ("nni", NNI_QUANTIZER, "nni2"),
        ("nni", NNI_QUANTIZER, "nni3"),
    ],
)
def test_every_layer_gets_the_same_bits(environment, script, target, tmp_path):
    assert read_by(environment, script, target, "quantization", BITS, tmp_path) == BITS
