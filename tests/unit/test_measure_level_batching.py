"""Several levels of a layer in one pass: the numbers of a pass each, or a note that says why there was one each."""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from senseapp.compressions import PruningConfig, QuantizationConfig
from senseapp.data.images import TensorImages
from senseapp.measure.cluster import remote
from senseapp.measure.level_batching import LevelBatch, levels_that_fit, rounding_bound
from senseapp.measure.measurer import JobResult, MeasurementJob
from senseapp.measure.plan import Layout
from senseapp.measure.reuse import arithmetic_of, images_in_span, reusable
from senseapp.measure.sweep import Sweep
from senseapp.networks.profile import profile_model
from senseapp.records.measurement import LayerMeasurement, PassSettings, Status
from senseapp.records.spec import SensitivitySpec
from senseapp.tasks import CLASSIFICATION
from tests.architectures import ARCHITECTURES, each_of, example_input
from tests.cases import first_of
from tests.plain_loop import labelled, sampled
from tests.small_models import images_for, small_network
from tests.trap_models import PIXELS, REPLAYED, FunctionalUse, Trap

SPARSITY = SensitivitySpec(levels=(0.3, 0.5, 0.8))
ROUNDED_INPUTS = SensitivitySpec(levels=(3.0, 4.0, 8.0), compression=QuantizationConfig(activations=True))
SPREAD = (
    "resnet18",
    "mobilenetv3_small_050",
    "vit_tiny",
    "tv_vit",
    "swin_tiny",
    "swinv2_tiny",
    "convnext_atto",
    "densenet121",
)

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:FutureWarning")


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many levels went into each pass over several."""
    made: list[int] = []
    outputs = LevelBatch.outputs

    def counted(self, prefixes, target, levels):  # type: ignore[no-untyped-def]
        made.append(len(levels))
        return outputs(self, prefixes, target, levels)

    monkeypatch.setattr(LevelBatch, "outputs", counted)
    return made


def swept(
    model: nn.Module, images: TensorImages, spec: SensitivitySpec, levels_together: int, micro_batch: int = 4
) -> tuple[Sweep, list[LayerMeasurement]]:
    """Return the sweep and what it found, with so many levels in one pass."""
    layout = Layout(micro_batch=micro_batch, levels_per_pass=levels_together)
    sweep = Sweep.open(model, images, spec, layout=layout, task=CLASSIFICATION)
    return sweep, list(sweep.measure())


def assert_equal(found: list[LayerMeasurement], expected: list[LayerMeasurement], most: float = 1e-5) -> None:
    """Counts of images exactly, losses to ``most``, recorded outputs to that and what float16 rounds off; and the rest.

    Another number of images in a pass may take another kernel, which adds the same products in another order.
    """
    assert [item.key for item in found] == [item.key for item in expected]
    for item, twin in zip(found, expected, strict=True):
        unsaid = {"changes": (), "seconds": 0, "outputs": b""}
        assert replace(item, **unsaid) == replace(twin, **unsaid)
        values, others = (np.frombuffer(each.outputs, np.float16).astype(np.float64) for each in (item, twin))
        np.testing.assert_allclose(values, others, rtol=2.0**-10, atol=most)
        for change, other in zip(item.changes, twin.changes, strict=True):
            assert change.num_samples == other.num_samples
            if change.metric in ("top1", "top5", "agreement"):
                assert change.moments == other.moments
            else:
                assert change.delta == pytest.approx(other.delta, abs=most)


@cache
def built(name: str) -> nn.Module:
    """Return a network that several tests use; a sweep works on a copy of its own."""
    return ARCHITECTURES[name].build()


@pytest.mark.slow
@pytest.mark.parametrize("spec", first_of([SPARSITY, ROUNDED_INPUTS]), ids=["sparsity", "activations"])
@each_of(SPREAD, kept=("mobilenetv3_small_050", "tv_vit"))
def test_levels_together_equal_levels_alone(name: str, spec: SensitivitySpec, passes: list[int]) -> None:
    model, x = built(name), example_input(ARCHITECTURES[name], 6)  # a full micro-batch and half of one
    layers = sampled([layer.name for layer in profile_model(model, x[:1]).layers if layer.runs], 4)
    spec = replace(spec, layers=layers)
    images = labelled(x, 10)
    batched, found = swept(model, images, spec, 3)
    assert batched.context.layout.levels_per_pass == 3
    assert {3} <= set(passes) <= {2, 3}
    largest = float(batched.baseline.outputs.abs().max())
    assert rounding_bound(batched.context) < 0.01
    assert_equal(found, swept(model, images, spec, 1)[1], 4 * rounding_bound(batched.context) * largest)


@pytest.mark.parametrize("name", first_of(REPLAYED, 4))
def test_hard_networks_too(name: str, passes: list[int]) -> None:
    torch.manual_seed(0)
    model = REPLAYED[name]().eval()
    images = labelled(torch.randn(6, 3, PIXELS, PIXELS, generator=torch.Generator().manual_seed(1)), 4)
    batched, found = swept(model, images, SPARSITY, 3)
    assert batched.context.layout.levels_per_pass == 3
    assert passes
    assert_equal(found, swept(model, images, SPARSITY, 1)[1])


class CentredOverBatch(Trap):
    def middle(self, x: Tensor) -> Tensor:
        return super().middle(x - x.mean(0))


class BatchMeanOfWhatFollows(Trap):
    def middle(self, x: Tensor) -> Tensor:
        x = super().middle(x)
        return x - x.mean(0, keepdim=True)


class SharedOutByBatch(Trap):
    def middle(self, x: Tensor) -> Tensor:
        return 5 * super().middle(x) / len(x)


class NewestFirst(Trap):
    """Images and positions change places, so that images are innermost."""

    def __init__(self) -> None:
        super().__init__()
        self.fold = nn.Flatten(0, 1)

    def middle(self, x: Tensor) -> Tensor:
        kept = self.fold(x.flatten(2).permute(2, 0, 1))  # (H·W·N, C)
        y = super().middle(x).flatten(2).permute(2, 0, 1).reshape(kept.shape)
        return (y + kept).view(PIXELS * PIXELS, -1, kept.shape[1]).permute(1, 2, 0).unflatten(2, (PIXELS, PIXELS))


class OtherLayersForMany(Trap):
    def middle(self, x: Tensor) -> Tensor:
        return super().middle(x) if len(x) in (1, 4) else self.second(x)  # as watched, and as measured


class PaddedBatch(Trap):
    """Works on one row more than there are images."""

    def middle(self, x: Tensor) -> Tensor:
        return super().middle(torch.cat([x, x[:1]]))[:-1]


class FailsOnMany(Trap):
    def middle(self, x: Tensor) -> Tensor:
        if len(x) > 8:
            raise ValueError("more than eight")
        return super().middle(x)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (CentredOverBatch, "the output for one image depends on the others in its pass"),
        (BatchMeanOfWhatFollows, "the output for one image depends on the others in its pass"),
        (SharedOutByBatch, "the output for an image depends on how many are in its pass"),
        (NewestFirst, "depends on"),
        (OtherLayersForMany, "the number of images decides which modules are called"),
        (PaddedBatch, r"a tensor of first has shape \(3, 6, 8, 8\) for two images and \(5, 6, 8, 8\) for four"),
        (FailsOnMany, r"several in one pass fail \(ValueError: more than eight\)"),
    ],
)
def test_a_network_that_mixes_images_is_found_out(make: Callable[[], nn.Module], reason: str) -> None:
    torch.manual_seed(0)
    model = make().eval()
    images = labelled(torch.randn(8, 3, PIXELS, PIXELS, generator=torch.Generator().manual_seed(1)), 4)
    batched, found = swept(model, images, SPARSITY, 3)
    assert batched.context.layout.levels_per_pass == 1
    (note,) = [note for note in batched.notes if "whole passes" not in note]
    assert note.startswith("Levels were measured one at a time, which takes longer: ")
    assert re.search(reason, note)
    assert_equal(found, swept(model, images, SPARSITY, 1)[1])


def test_a_weight_that_is_read_elsewhere_goes_alone(passes: list[int]) -> None:
    torch.manual_seed(0)
    images = labelled(torch.randn(6, 3, PIXELS, PIXELS), 4)
    sweep, _ = swept(FunctionalUse().eval(), images, SPARSITY, 3)
    assert sweep.notes == [
        "The levels of first and 1 more were measured one at a time (its weight is read outside of its own call)."
    ]
    assert passes[-2:] == [3, 3]  # stem and head still went together


class ReadTwice(Trap):
    """Calls a layer, and reads its weight again by itself."""

    def middle(self, x: Tensor) -> Tensor:
        return F.conv2d(self.second(F.relu(self.first(x))), self.first.weight, padding=1)


def test_a_second_use_without_a_call_is_seen(passes: list[int]) -> None:
    torch.manual_seed(0)
    model, images = ReadTwice().eval(), labelled(torch.randn(6, 3, PIXELS, PIXELS), 4)
    sweep, found = swept(model, images, SPARSITY, 3)
    assert sweep.notes == [
        "The levels of first were measured one at a time (its weight is read outside of its own call)."
    ]
    assert_equal(found, swept(model, images, SPARSITY, 1)[1])


def test_hooks_of_a_layer_are_left_to_see_single_levels() -> None:
    model = small_network()
    model.stem.register_forward_hook(lambda *_: None)
    sweep, found = swept(model, images_for(8), SPARSITY, 3)
    assert sweep.notes == ["The levels of stem were measured one at a time (it has hooks of its own)."]
    assert_equal(found, swept(model, images_for(8), SPARSITY, 1)[1])


def test_a_level_that_cannot_be_reached_fails_alone(passes: list[int]) -> None:
    spec = SensitivitySpec(levels=(0.001, 0.5, 0.8))
    sweep, found = swept(small_network(), images_for(8), spec, 3)
    failed = [item for item in found if item.status is Status.FAILED]
    assert {item.level for item in failed} == {0.001}
    assert "less than one" in failed[0].reason
    assert 2 in passes
    assert_equal(found, swept(small_network(), images_for(8), spec, 1)[1])
    assert sweep.notes == []


def test_spans_of_images_and_settling_go_together_too() -> None:
    spec = replace(SPARSITY, until_settled=True, metric="kl")
    _, found = swept(small_network(), images_for(160), spec, 2, micro_batch=8)
    assert_equal(found, swept(small_network(), images_for(160), spec, 1, micro_batch=8)[1])
    assert {item.changes[0].num_samples for item in found} > {64}


def test_resuming_measures_what_is_left(passes: list[int]) -> None:
    whole = swept(small_network(), images_for(8), SPARSITY, 3)[1]
    sweep = Sweep.open(
        small_network(), images_for(8), SPARSITY, layout=Layout(micro_batch=4, levels_per_pass=3), task=CLASSIFICATION
    )
    rest = list(sweep.measure(done=whole[:4]))
    assert_equal([*whole[:4], *rest], whole)


def test_only_a_run_of_the_same_levels_repeats_what_was_measured_together() -> None:
    sweep, found = swept(small_network(), images_for(8), SPARSITY, 3)
    earlier: Any = SimpleNamespace(
        spec=SimpleNamespace(sensitivity=SPARSITY),
        passes=PassSettings(micro_batch=4, levels_together=3, images_in_span=images_in_span(sweep)),
        precision="fp32",
        method="replay",
        measurements=found,
    )
    assert arithmetic_of(earlier)[0] == sweep.context.layout
    assert reusable(sweep, earlier) == tuple(found)
    sweep.spec = replace(SPARSITY, levels=(0.3, 0.5))
    assert reusable(sweep, earlier) == ()
    sweep.context.layout = replace(sweep.context.layout, levels_per_pass=1)
    assert reusable(sweep, earlier) == ()  # other passes
    earlier.passes = replace(earlier.passes, levels_together=1)
    assert {item.level for item in reusable(sweep, earlier)} == {0.3, 0.5}


def test_workers_of_a_cluster_do_so_too(passes: list[int]) -> None:
    images = images_for(8)
    sweep, found = swept(small_network(), images, SPARSITY, 3)
    here = len(passes)
    measurer = remote.prepare(pickle.loads(pickle.dumps(remote.setup_of(sweep))))
    jobs = [
        MeasurementJob(index=index, level=level, span=(0, 8))
        for index in range(len(sweep.planned))
        for level in SPARSITY.levels
    ]
    results = list(remote.measure_block(measurer, images, sweep.baseline, jobs))
    assert len(passes) == 2 * here
    assert [result.moments for result in results if isinstance(result, JobResult)] == [
        {change.metric: change.moments for change in item.changes} for item in found
    ]


class Scarce:
    """Lets a norm run out of memory for more than so many images, as CUDA does."""

    def __init__(self, layer: nn.Module, most_images: int) -> None:
        self.most_images = most_images
        layer.register_forward_pre_hook(self)

    def __call__(self, _layer: nn.Module, given: tuple[Tensor, ...]) -> None:
        if len(given[0]) > self.most_images:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")


@pytest.mark.parametrize(
    ("most_images", "levels", "micro_batch"), first_of([(31, 2, 8), (3, 1, 2), (32, 4, 8), (16, 2, 8), (15, 1, 8)], 2)
)
def test_memory_takes_levels_first_and_images_then(most_images: int, levels: int, micro_batch: int) -> None:
    layout = Layout(micro_batch=8, levels_per_pass=4)
    sweep = Sweep.open(
        small_network(),
        images_for(),
        replace(SPARSITY, levels=(0.2, 0.4, 0.6, 0.8)),
        layout=layout,
        task=CLASSIFICATION,
    )
    Scarce(sweep.context.model.get_submodule("blocks.1.norm1"), most_images)
    found = list(sweep.measure())
    assert not [item for item in found if item.status is Status.FAILED]
    assert (sweep.context.layout.levels_per_pass, sweep.context.layout.micro_batch) == (levels, micro_batch)
    notes = []
    if levels < 4:
        notes.append(
            f"The memory of cpu was too small for 4 levels of a layer in one pass; {levels} were taken from there on."
        )
    if micro_batch < 8:
        notes.append("The memory of cpu was too small for passes over 8 images at once; 2 were taken from there on.")
    assert sweep.notes == notes
    assert_equal(found, swept(small_network(), images_for(), sweep.spec, 1, micro_batch=8)[1])


def fitting(device: str, memory_bytes: int, spec: SensitivitySpec = SPARSITY, asked: int | None = None) -> int:
    sweep = Sweep.open(small_network(), images_for(), spec, layout=Layout(micro_batch=8), task=CLASSIFICATION)
    sweep.context.device = torch.device(device)
    return levels_that_fit(
        sweep.context, sweep.compressor, sweep.planned, num_levels=20, memory_bytes=memory_bytes, asked=asked
    )


def test_a_card_takes_as_many_levels_as_fit_and_a_processor_one() -> None:
    assert fitting("cpu", 2**40) == 1
    assert fitting("cpu", 2**40, asked=5) == 5
    assert fitting("cuda", 2**40) == fitting("mps", 2**40) == 20
    assert fitting("cuda", 1) == 1
    # Eight images with two outputs of 8 × 8 × 8 float32 kept and three at work, twice over; and the largest weight.
    largest_layer = 8 * 8 * 9
    for levels in (2, 3, 7):
        enough = 4 * levels * (8 * 2 * (2 + 3) * (8 * 8 * 8 * 4) + 4 * largest_layer)
        assert fitting("cuda", enough) == levels
        assert fitting("cuda", enough - 1) == levels - 1


def test_no_tensor_outgrows_indices_of_32_bits() -> None:
    sweep = Sweep.open(small_network(), images_for(), SPARSITY, layout=Layout(micro_batch=8), task=CLASSIFICATION)
    sweep.context.device = torch.device("cuda")
    sweep.context.layout = replace(sweep.context.layout, micro_batch=2**20)
    fits = levels_that_fit(sweep.context, sweep.compressor, sweep.planned, num_levels=20, memory_bytes=2**60)
    assert fits * 2**20 * 8 * 8 * 8 < 2**31 <= (fits + 1) * 2**20 * 8 * 8 * 8


def test_removed_channels_never_go_together() -> None:
    pruning = SensitivitySpec(levels=(0.3, 0.6), compression=PruningConfig())
    assert fitting("cuda", 2**40, pruning) == 1
    sweep, _ = swept(small_network(), images_for(8), pruning, 3)
    assert sweep.context.layout.levels_per_pass == 1


def test_what_is_resumed_here_fits_the_memory_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("senseapp.measure.sweep.memory_bytes", lambda device: 1)
    assert swept(small_network(), images_for(8), SPARSITY, 3)[0].context.layout.levels_per_pass == 1
