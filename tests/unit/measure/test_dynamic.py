"""Networks that treat images differently are measured as by whole passes, whichever image comes first."""

import copy
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from senseapp import analyze_sensitivity
from senseapp.core.errors import MeasurementFailed
from senseapp.descriptions import get
from senseapp.measure.plan import Layout
from senseapp.measure.sweep import Sweep
from senseapp.notebook import SensitivityResult
from senseapp.records.measurement import Status
from senseapp.records.spec import SensitivitySpec
from senseapp.tasks import CLASSIFICATION
from tests.cases import first_of
from tests.dynamic_models import DYNAMIC, DropsAtRandom, Experts, images
from tests.plain_loop import assert_same, labelled, measured
from tests.trap_models import NUM_CLASSES

LEVELS = {"sparsity": 0.5, "quantization": 3.0, "pruning": 0.4}
SHOWN = {"sparsity": 50, "quantization": 3, "pruning": 40}
ORDERS = {"dark first": (0.0, 1.0, 0.0, 1.0, 0.0, 0.0), "bright first": (1.0, 0.0, 0.0, 1.0, 1.0, 0.0)}


def _build(make: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    return make().eval()


def _whole_passes(model: nn.Module, batches: tuple[Tensor, ...]) -> Tensor:
    with torch.no_grad():
        return torch.cat([model(batch.clone()) for batch in batches])


def _batches(first: int, second: int) -> pytest.MarkDecorator:
    """Parametrize by the order of images and the size of batches; other pairs of both are wide."""
    pairs = [("dark first", first), ("bright first", second), ("dark first", second), ("bright first", first)]
    wide = [pytest.param(*each, marks=pytest.mark.wide) for each in pairs[2:]]
    return pytest.mark.parametrize(("order", "size"), [*pairs[:2], *wide])


@_batches(1, 2)
@pytest.mark.parametrize("kind", ["sparsity", "pruning", pytest.param("quantization", marks=pytest.mark.wide)])
@pytest.mark.parametrize("name", DYNAMIC)
def test_every_layer_is_measured_as_by_whole_passes(name: str, kind: str, order: str, size: int) -> None:
    data = labelled(images(*ORDERS[order]), NUM_CLASSES)
    before, batches = data.images.clone(), data.images.split(size)
    model = _build(DYNAMIC[name])
    spec = SensitivitySpec(compression=get(kind).config(), levels=(LEVELS[kind],))
    sweep = Sweep.open(model, data, spec, layout=Layout(micro_batch=size), task=CLASSIFICATION)
    found = list(sweep.measure())
    values = measured(found)
    assert torch.equal(data.images, before)
    original = _whole_passes(model, batches)
    assert torch.equal(sweep.baseline.outputs, original)
    reference = Sweep.open(copy.deepcopy(model), data, spec, layout=Layout(micro_batch=size), task=CLASSIFICATION)
    for item in reference.planned:
        try:
            with reference.compressor.compress(item.target, LEVELS[kind]):
                expected = _whole_passes(reference.context.model, batches)
        except (MeasurementFailed, RuntimeError):  # channels that images on another way need
            assert item.target.layer not in values
            continue
        assert data.labels is not None
        assert_same(values[item.target.layer], expected, original, data.labels)
    assert all(item.reason for item in found if item.status is not Status.MEASURED)
    if sweep.context.replay_obstacle:
        assert f"Measured by whole passes, which takes longer: {sweep.context.replay_obstacle}." in sweep.notes


def _loss(model: nn.Module, data: Tensor, size: int) -> float:
    labels = torch.arange(len(data)) % NUM_CLASSES
    return float(F.cross_entropy(torch.cat([model(batch.clone()).detach() for batch in data.split(size)]), labels))


def _analyzed(model: nn.Module, data: Tensor, kind: str, size: int, *, plain: bool) -> SensitivityResult:
    def evaluate(network: nn.Module) -> float:
        with torch.set_grad_enabled(plain):  # under which every pass is a whole one
            return _loss(network, data, size)

    return analyze_sensitivity(model, data, evaluate, kind, SHOWN[kind], higher_is_better=False, verbose=False)


@_batches(3, 1)
@pytest.mark.parametrize("kind", first_of(LEVELS))
@pytest.mark.parametrize("name", DYNAMIC)
def test_the_notebook_gives_the_numbers_of_whole_passes(name: str, kind: str, order: str, size: int) -> None:
    model, data = _build(DYNAMIC[name]), images(*ORDERS[order])
    result, plain = (_analyzed(model, data, kind, size, plain=plain) for plain in (False, True))
    assert result.baseline_metric == pytest.approx(_loss(model, data, size), abs=1e-6)
    ours, theirs = ({layer.name: layer.delta for layer in each.layers} for each in (result, plain))
    assert ours == pytest.approx(theirs, abs=1e-6, nan_ok=True)
    assert all(layer.reason for layer in result.layers if not layer.prunable)


@pytest.mark.parametrize("name", ["exit of some", "confident exit", "experts", "functional experts", "skipped block"])
@pytest.mark.parametrize("order", ORDERS)
def test_layers_that_only_some_images_use_are_not_unused(name: str, order: str) -> None:
    model, means = _build(DYNAMIC[name]), ORDERS[order]
    data = labelled(images(*means), NUM_CLASSES)
    used = _used_layers(model, data.images)
    sweep = Sweep.open(model, data, SensitivitySpec(levels=(0.5,)), layout=Layout(micro_batch=1), task=CLASSIFICATION)
    found = {item.layer: item for item in sweep.measure()}
    result = _analyzed(model, data.images, "sparsity", 1, plain=False)
    for layer, item in found.items():
        assert (item.status is Status.MEASURED) == (layer in used)
    assert {layer.name for layer in result.layers if layer.prunable} == used
    if later := used - _used_layers(model, data.images[:1]):
        assert any("used by some of the images only" in note for note in sweep.notes)
        assert any("used by some of the images only" in note for note in result.notes)
        assert all(sweep.context.profile.layer(layer).macs > 0 for layer in later)


def _used_layers(model: nn.Module, data: Tensor) -> set[str]:
    """Return the layers of which a change of the weight changes an output."""
    with torch.no_grad():
        before = [model(image[None]) for image in data]
        used = set()
        for name, module in model.named_modules():
            if isinstance(module, nn.Conv2d | nn.Linear):
                kept = module.weight.detach().clone()
                module.weight.mul_(1.001)
                if any(not model(x[None]).equal(y) for x, y in zip(data, before, strict=True)):
                    used.add(name)
                module.weight.copy_(kept)
    return used


def test_multiply_accumulates_of_experts_are_means_over_the_images() -> None:
    model, data = _build(Experts), labelled(images(*ORDERS["dark first"]), NUM_CLASSES)
    sweep = Sweep.open(model, data, SensitivitySpec(levels=(0.5,)), layout=Layout(micro_batch=2), task=CLASSIFICATION)
    with torch.no_grad():
        features = model.first(model.norm(model.stem(data.images)))
    chosen = features.mean((2, 3))[:, :3].argmax(1).tolist()
    each = 8 * 8 * 6 * 6 * 9
    for index in set(chosen) - {chosen[0]}:
        expected = each * chosen.count(index) // len(chosen)
        assert sweep.context.profile.layer(f"experts.{index}").macs == expected


def test_chance_in_a_pass_is_said() -> None:
    model, data = _build(DropsAtRandom), images(*ORDERS["dark first"])
    torch.manual_seed(0)
    result = _analyzed(model, data, "sparsity", 1, plain=False)
    assert any(note.startswith("Measured by whole passes, which takes longer: ") for note in result.notes)
    sweep = Sweep.open(model, labelled(data, NUM_CLASSES), SensitivitySpec(levels=(0.5,)), task=CLASSIFICATION)
    assert sweep.context.replay_obstacle
    assert any("Measured by whole passes" in note for note in sweep.notes)
