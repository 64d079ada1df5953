"""Each target file, read and applied by the library it is for, does what our own ``apply`` does.

The lines that apply it run there as they are printed. The libraries pin what clashes with ours, so they run in
environments of their own (``scripts/peer_environment.py``).
"""

import json
import subprocess
from functools import cache
from pathlib import Path

import pytest

from scripts.peer_environment import PeerFailed, ensure
from senseapp.compressions import PruningConfig, SparsityConfig
from senseapp.compressions.base import CompressionRequest, build_compressor
from senseapp.formats.model_explorer import exported_graph, overlay_of, schedule_values
from senseapp.formats.registry import FORMATS
from senseapp.networks.profile import profile_model
from senseapp.reconstruct.apply import AppliedModel, apply_schedule, configs_for
from senseapp.records.schedule import Schedule, ScheduleEntry
from tests.cases import first_of, seldom
from tests.peers.export_readers import LAYERS, a_network, some_images

SCRIPT = Path(__file__).parent.parent / "peers" / "export_readers.py"
NETWORKS = ["chain", seldom("lite0")]
NNI2 = pytest.param("nni2", marks=pytest.mark.wide)  # an environment of its own, as has the next
SPARSEML = pytest.param("sparseml", marks=pytest.mark.wide)
LEVELS = {
    "sparsity": {"conv1": 0.25, "conv2": 0.8, "fc": 0.07},
    "pruning": {"conv1": 0.25, "conv2": 0.5},
    "quantization": {"conv1": 8, "conv2": 3, "fc": 4},
}
TARGETS = {
    "fasterai": ("sparsity.fasterai-sparsifier", "pruning.fasterai-pruner"),
    "exports": (
        "pruning.torch-pruning",
        "sparsity.nni3",
        "quantization.nni3",
        "quantization.torchao",
        "quantization.modelopt",
    ),
    "nni2": ("sparsity.nni2", "quantization.nni2"),
    "sparseml": ("sparsity.sparseml",),
    "model-explorer": ("sparsity.model-explorer",),
}
EVEN_LEVELS = {"sparsity": 0.5, "pruning": 0.25, "quantization": 4}


@cache
def profile(network: str):
    return profile_model(a_network(network), some_images(network))


@cache
def a_schedule(network: str, compression: str) -> Schedule:
    """One level per layer of the small network; the same level for every layer, or group, of the other."""
    groups = {layer.name: (layer.name,) for layer in profile(network).layers}
    if network != "chain" and compression == "pruning":
        request = CompressionRequest(
            model=a_network(network), layers=profile(network).layers, calibration=(some_images(network),)
        )
        groups = {each.layer: each.members for each in build_compressor(PruningConfig(), request).targets}
    levels = LEVELS[compression] if network == "chain" else dict.fromkeys(groups, EVEN_LEVELS[compression])
    entries = (
        ScheduleEntry(layer=layer, members=groups[layer], compression=compression, level=level)
        for layer, level in levels.items()
    )
    return Schedule(model=network, method="manual", entries=tuple(entries))


@cache
def ours(network: str, compression: str) -> AppliedModel:
    return apply_schedule(
        a_network(network),
        a_schedule(network, compression),
        profile=profile(network),
        configs=configs_for(SparsityConfig()),
        calibration=(some_images(network),),
    )


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory):
    """Return what a library did to each layer, by network, compression and target; it is asked once for a network."""
    folder, known = tmp_path_factory.mktemp("targets"), {}

    def read(network: str, compression: str, target: str) -> dict[str, int]:
        wanted = f"{compression}.{target}"
        environment = next(name for name, targets in TARGETS.items() if wanted in targets)
        if (environment, network) not in known:
            known[environment, network] = {}
            known[environment, network] = applied_there(environment, network, folder)
        return known[environment, network][file_name(network, compression, target)]

    return read


def file_name(network: str, compression: str, target: str) -> str:
    return f"{network}.{compression}.{target}{Path(FORMATS[target].suffix).suffix}"


def applied_there(environment: str, network: str, folder: Path) -> dict[str, dict[str, int]]:
    try:
        python = ensure(environment)
    except PeerFailed as failed:
        pytest.skip(str(failed))
    files = []
    for compression, target in (wanted.split(".") for wanted in TARGETS[environment]):
        schedule, name = a_schedule(network, compression), file_name(network, compression, target)
        (folder / name).write_text(written(network, target, schedule, folder / name))
        (folder / f"{name}.lines").write_text(FORMATS[target].lines(schedule, name))
        files.append(name)
    done = subprocess.run([python, SCRIPT, *files], capture_output=True, text=True, check=False, cwd=folder)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def written(network: str, target: str, schedule: Schedule, path: Path) -> str:
    """Return the text of the file; the graph of an overlay is put beside it."""
    if target != "model-explorer":
        return FORMATS[target].write(schedule, profile(network))
    values, sample = schedule_values(schedule), some_images(network)[:1]
    nodes, graph = exported_graph(a_network(network), sample)
    path.with_suffix(".pt2").write_bytes(graph)
    return overlay_of(values, nodes, title=network)


def zeros(network: str) -> dict[str, int]:
    model = ours(network, "sparsity").model
    return {layer.name: int((model.get_submodule(layer.name).weight == 0).sum()) for layer in profile(network).layers}


@pytest.mark.wide
@pytest.mark.peer
@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("target", first_of(["fasterai-sparsifier", NNI2, "nni3", SPARSEML]))
def test_the_same_number_of_weights_is_zeroed(network, target, theirs):
    """Ours zeroes the smallest floor(s n); fasterai keeps the weight at its threshold, so it zeroes one fewer."""
    found = theirs(network, "sparsity", target)
    assert found == pytest.approx(zeros(network), abs=1)
    assert min(found.values()) > 10


@pytest.mark.wide
@pytest.mark.peer
@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("target", ["fasterai-pruner", "torch-pruning"])
def test_as_many_channels_are_removed(network, target, theirs):
    model = ours(network, "pruning").model
    kept = {layer.name: len(model.get_submodule(layer.name).weight) for layer in profile(network).layers}
    assert theirs(network, "pruning", target) == kept
    if network == "chain":
        assert kept == {"conv1": 12, "conv2": 10, "fc": 10}


@pytest.mark.peer
@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("target", ["torchao", "modelopt", NNI2, "nni3"])
def test_every_layer_gets_the_same_bits_or_is_named(network, target, theirs):
    applied, schedule = ours(network, "quantization"), a_schedule(network, "quantization")
    names = LAYERS if network == "chain" else [layer.name for layer in profile(network).layers]
    found = theirs(network, "quantization", target)
    left_out = " ".join(note for note in FORMATS[target].notes(schedule, profile(network)) if "Left out" in note)
    assert found == {name: applied.bits(name) for name in names if name in found}
    missed = set(names) - set(found)
    assert all(f" {name}," in left_out or f" {name}." in left_out for name in missed)
    assert len(missed) == (16 if (network, target) == ("lite0", "torchao") else 0)


@pytest.mark.peer
@pytest.mark.wide  # an environment of its own
@pytest.mark.parametrize(("network", "layers"), [("chain", 3), ("lite0", 50)])
def test_model_explorer_knows_every_node_that_is_coloured(network, layers, theirs):
    found = theirs(network, "sparsity", "model-explorer")
    assert set(found.values()) == {1}
    assert len(found) >= layers
