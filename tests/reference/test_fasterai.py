"""Our deltas agree with those of fasterai 0.3.2's ``SensitivityAnalyzer``, run in an environment of its own.

Where both mean the same thing (weights zeroed by magnitude; weights rounded to a symmetric grid per output channel),
the same ``eval_fn`` gives the same numbers. We differ on purpose where the reference is wrong or misleading:

* Activations: fasterai takes the range of each batch that it evaluates, so the result depends on the batch size and
  on the images judged. We quantize a layer's *input* with ranges from calibration images.
* Pruning: fasterai prunes each layer of a coupled group in turn (with all that hangs on it), counts a failed prune
  as a delta of 0, and reads a target of 1 percent as 100 %. We measure each group once, say which layers it has, and
  call a layer that cannot be pruned *not prunable*.
* Bits: fasterai reads ``level=1`` as 8 bits without a word. We refuse it, and fractions of bits.
* Transposed convolutions: fasterai quantizes them along axis 0, which is their input. Ours is the output, axis 1.
* Layers: fasterai lists them in the order of definition and compresses a weight shared by two layers twice, under
  both names. We list them in execution order, and such a weight once.
"""

import json
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
import timm
import torch
import torch.nn.functional as F
from torch import nn

from scripts.peer_environment import ensure
from senseapp import analyze_sensitivity, notebook
from senseapp.records.resolution import spearman
from tests.peers import fasterai_notebook

NUM_CLASSES = 10
# Units of which a layer has three or nine are left out: half of them is one here, and another number where a quantile
# is interpolated. One unit of 64 more or less is what the tolerance below is for.
GRANULARITIES = (
    *("channel", "column", "row", "kernel", "filter", "shared_weight", "shared_column", "shared_row"),
    *("shared_kernel", "vertical_slice", "horizontal_slice"),
)
COMPRESSIONS = (("sparsity", 50), ("quantization", 4))
SCRIPT = Path(__file__).parent.parent / "peers" / "fasterai_deltas.py"

Deltas = dict[str, dict[str, float]]
"""What is lost, by compression or granularity, and by layer."""


@pytest.fixture(scope="module")
def case() -> dict[str, object]:
    torch.manual_seed(0)
    model = timm.create_model("resnet18", num_classes=NUM_CLASSES, zero_init_last=False).eval()
    images, labels = torch.randn(8, 3, 64, 64), torch.randint(NUM_CLASSES, (8,))
    return {
        "model": "resnet18",
        "num_classes": NUM_CLASSES,
        "weights": model.state_dict(),
        "images": images,
        "labels": labels,
        "network": model,
        "granularities": GRANULARITIES,
        "some_layers": ["layer1.0.conv1", "layer2.0.downsample.0", "layer4.1.conv2"],
    }


@pytest.fixture(scope="module")
def theirs(case: dict[str, object], tmp_path_factory: pytest.TempPathFactory) -> Deltas:
    """What fasterai finds on some layers."""
    return their_deltas({**case, "compressions": []}, tmp_path_factory.mktemp("some"))


@pytest.fixture(scope="module")
def theirs_everywhere(case: dict[str, object], tmp_path_factory: pytest.TempPathFactory) -> Deltas:
    """What fasterai finds on all layers."""
    everywhere = {**case, "compressions": COMPRESSIONS, "granularities": []}
    return their_deltas(everywhere, tmp_path_factory.mktemp("all"))


def their_deltas(case: dict[str, object], folder: Path) -> Deltas:
    file = folder / "case.pt"
    torch.save({name: value for name, value in case.items() if name != "network"}, file)
    done = subprocess.run([ensure("fasterai"), SCRIPT, file], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def _loss(model: nn.Module, case: dict[str, object]) -> float:
    return float(F.cross_entropy(model(case["images"]), case["labels"]))


@pytest.mark.wide
@pytest.mark.peer
@pytest.mark.parametrize(("compression", "level"), COMPRESSIONS)
def test_deltas_agree(compression: str, level: float, case: dict[str, object], theirs_everywhere: Deltas) -> None:
    model, images = case["network"], case["images"]
    result = analyze_sensitivity(
        model,
        images[:1],
        lambda network: _loss(network, case),
        compression,
        level,
        higher_is_better=False,
        metric_name="loss",
        verbose=False,
    )
    ours = {layer.name: layer.delta for layer in result.layers}
    assert ours.keys() == theirs_everywhere[compression].keys()
    reference = [theirs_everywhere[compression][name] for name in ours]
    span = max(reference) - min(reference)
    assert span > 1e-3
    assert max(abs(a - b) for a, b in zip(ours.values(), reference, strict=True)) <= 0.02 * span
    assert spearman(list(ours.values()), reference) >= 0.999


@pytest.mark.wide
@pytest.mark.peer
def test_each_granularity_zeroes_what_fasterai_zeroes(case: dict[str, object], theirs: Deltas) -> None:
    for granularity in GRANULARITIES:
        result = analyze_sensitivity(
            case["network"],
            case["images"][:1],
            lambda network: _loss(network, case),
            granularity=granularity,
            layers=case["some_layers"],
            higher_is_better=False,
            verbose=False,
        )
        ours = {layer.name: layer.delta for layer in result.layers}
        assert ours == pytest.approx(theirs[granularity], abs=0.015), granularity


@pytest.mark.peer
def test_every_cell_of_the_notebook_runs_and_gives_its_numbers(theirs: dict[str, dict[str, dict[str, float]]]) -> None:
    ours = fasterai_notebook.cells(notebook, SimpleNamespace(f=torch.abs))
    reference = theirs["notebook"]
    assert ours.keys() == reference.keys()
    most = max(abs(delta) for delta in reference["everything"].values())
    tolerances = {"targets": 1.0, "filters": 0.25 * most}  # percent; one of 16 filters more or less
    for cell, deltas in ours.items():
        assert deltas == pytest.approx(reference[cell], abs=tolerances.get(cell, 0.05 * most)), cell
