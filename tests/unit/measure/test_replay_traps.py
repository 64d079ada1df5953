"""Replay on networks made to break it: either it equals the plain loop, or it is found out and not used."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from senseapp.compressions import SparsityConfig
from senseapp.data.images import TensorImages
from senseapp.measure.plan import Layout
from senseapp.measure.sweep import Sweep
from senseapp.records.measurement import Status
from senseapp.records.spec import SensitivitySpec
from senseapp.tasks import CLASSIFICATION
from tests.plain_loop import SPARSITY, assert_equals_plain_loop, assert_same, labelled, measured, sparse_logits
from tests.trap_models import DETECTED, NUM_CLASSES, PIXELS, REPLAYED, NeverRuns, RandomOutput, ReadByData, TiedWeights

DARK, BRIGHT = 0.0, 1.0

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:FutureWarning")  # deprecated, but still in use


def _images(*means: float, each: int = 2) -> Tensor:
    """Return ``each`` random images around each mean; a micro-batch of that many sees one kind only."""
    noise = 0.3 * torch.randn(each * len(means), 3, PIXELS, PIXELS, generator=torch.Generator().manual_seed(1))
    return noise + torch.tensor(means).repeat_interleave(each)[:, None, None, None]


def _build(make: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    model = make().eval()
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.running_mean.normal_(0, 0.3)
                module.bias.normal_(0, 0.3)
    return model


def _check_in_micro_batches(model: nn.Module, images: TensorImages, size: int) -> Sweep:
    """Compare with whole passes over the same micro-batches."""
    spec = SensitivitySpec(levels=(SPARSITY,))
    sweep = Sweep.open(model, images, spec, layout=Layout(micro_batch=size), task=CLASSIFICATION)
    values = measured(list(sweep.measure()))
    assert values
    assert images.labels is not None
    batches = images.images.split(size)
    with torch.no_grad():
        original = torch.cat([model(batch.clone()) for batch in batches])
    for layer, value in values.items():
        attribute = sweep.context.profile.layer(layer).parameter.rpartition(".")[2]
        logits = torch.cat([sparse_logits(model, layer, attribute, batch.clone()) for batch in batches])
        assert_same(value, logits, original, images.labels)
    return sweep


@pytest.mark.parametrize("name", REPLAYED)
def test_it_is_replayed_and_equals_whole_passes(name: str) -> None:
    images = labelled(_images(DARK, BRIGHT), NUM_CLASSES)
    before = images.images.clone()
    sweep = assert_equals_plain_loop(_build(REPLAYED[name]), images)
    assert sweep.context.replay_obstacle is None
    assert sweep.notes == []
    assert torch.equal(images.images, before)


@pytest.mark.parametrize("name", REPLAYED)
def test_several_micro_batches_do_not_mix(name: str) -> None:
    images = labelled(_images(DARK, BRIGHT, DARK), NUM_CLASSES)
    before = images.images.clone()
    assert _check_in_micro_batches(_build(REPLAYED[name]), images, 2).context.replay_obstacle is None
    assert torch.equal(images.images, before)


@pytest.mark.parametrize("name", DETECTED)
def test_what_cannot_be_replayed_is_found_out(name: str) -> None:
    sweep = _check_in_micro_batches(_build(DETECTED[name]), labelled(_images(DARK, BRIGHT, DARK), NUM_CLASSES), 2)
    assert sweep.context.replay_obstacle
    assert f"Measured by whole passes, which takes longer: {sweep.context.replay_obstacle}." in sweep.notes


def test_a_kept_output_that_only_some_images_read_is_not_missing() -> None:
    _check_in_micro_batches(_build(ReadByData), labelled(_images(DARK, BRIGHT, DARK), NUM_CLASSES), 2)


def test_random_output_is_measured_plainly_and_said() -> None:
    images = labelled(_images(DARK), NUM_CLASSES)
    sweep = Sweep.open(_build(RandomOutput), images, SensitivitySpec(levels=(SPARSITY,)), task=CLASSIFICATION)
    assert "two passes over the same images differ" in sweep.context.replay_obstacle
    assert sweep.notes
    assert all(item.status is Status.MEASURED for item in sweep.measure())


@pytest.mark.parametrize(
    ("make", "layer", "reason"),
    [(NeverRuns, "spare", "not used in a forward pass"), (TiedWeights, "second", "shared with first")],
)
def test_a_layer_without_a_measurement_of_its_own_says_why(make: type[nn.Module], layer: str, reason: str) -> None:
    images = labelled(_images(DARK), NUM_CLASSES)
    sweep = Sweep.open(_build(make), images, SensitivitySpec(levels=(SPARSITY,)), task=CLASSIFICATION)
    found = {item.layer: item for item in sweep.measure()}
    assert found["first"].status is Status.MEASURED
    assert found[layer].status is Status.NOT_APPLICABLE
    assert reason in found[layer].reason


def test_the_images_stay_as_they_are_also_where_inputs_are_observed() -> None:
    images = labelled(_images(DARK, BRIGHT), NUM_CLASSES)
    before = images.images.clone()
    spec = SensitivitySpec(compression=SparsityConfig(criterion="wanda"), levels=(SPARSITY,))
    list(Sweep.open(_build(REPLAYED["overwritten input"]), images, spec, task=CLASSIFICATION).measure())
    assert torch.equal(images.images, before)
