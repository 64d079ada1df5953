"""The check of calibration images, beside counts in numpy and files quantized one by one."""

from __future__ import annotations

import json

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import nn

from senseapp.compressions import QuantizationConfig
from senseapp.core.codec import dumps, loads
from senseapp.data.images import TensorImages
from senseapp.prove.calibration_check import _counts, _draws, _preparation_notes, check_calibration
from senseapp.reconstruct.write import onnx_model
from senseapp.records.calibration import CalibrationCheck, CalibrationRung, TensorCoverage
from senseapp.runtimes.onnxruntime.int8 import Int8Writer
from senseapp.runtimes.onnxruntime.operations import OPERATIONS
from senseapp.tasks import CLASSIFICATION
from tests.small_evaluator import evaluator_of
from tests.small_models import images_for, small_network
from tests.toy_runtime import OPERATIONS as TOY

pytestmark = pytest.mark.slow  # exports a network for onnxruntime, which takes a second


@pytest.fixture(scope="module")
def network() -> nn.Module:
    return small_network()


def curves_of(scale: float, count: int = 24) -> TensorImages:
    return TensorImages(scale * images_for(count).images)


def test_rungs_have_draws_of_their_size_and_the_files_do_what_they_say(network):
    steps: list[str] = []
    evaluator = evaluator_of(network, QuantizationConfig(), curves=curves_of(1.0), progress=steps.append)
    found = check_calibration(evaluator, OPERATIONS)
    assert [(rung.images, len(rung.values)) for rung in found.rungs] == [(8, 4), (16, 4), (24, 1)]
    assert found.metric == "agreement"
    assert found.images == 40
    assert sum("Calibrating on 8 images" in step for step in steps) == 4
    content, held_out = evaluator.original_file(OPERATIONS), evaluator.images.proof.images
    with Int8Writer(content, [curves_of(1.0).images]) as writer:
        int8 = OPERATIONS.open(writer.write()).run(held_out).argmax(1)
    same = (int8 == OPERATIONS.open(content).run(held_out).argmax(1)).double().mean()
    assert found.rungs[-1].values[0] == pytest.approx(float(same))
    assert loads(dumps(found), CalibrationCheck) == found
    json.dumps(found.findings)


@pytest.mark.wide
def test_images_of_another_domain_are_not_covered_and_named_after_their_layer(network):
    found = check_calibration(evaluator_of(network, QuantizationConfig(), curves=curves_of(0.3)), OPERATIONS)
    assert found.num_uncovered > 3
    assert found.beyond > 5 * found.own_beyond
    assert {each.title for each in found.uncovered} & {"the input", "stem", "blocks.0.conv1"}
    assert "look unlike the others" in found.findings[1]
    alike = check_calibration(evaluator_of(network, QuantizationConfig(), curves=curves_of(1.0, 96)), OPERATIONS)
    assert alike.num_uncovered == 0
    assert len(alike.findings) == 1


def test_coverage_counts_what_numpy_counts(network):
    calibration, others = images_for(8).images, 1.5 * images_for(12, seed=4).images
    content = onnx_model(network, calibration[:1])
    with Int8Writer(content, [calibration]) as writer:
        found = {
            each.node: each for each in OPERATIONS.coverage(content, writer.write(), [calibration], others.split(5))
        }
    model = onnx.load_from_string(content)
    node = next(each for each in model.graph.node if each.name in found and each.op_type == "Relu")
    model.graph.output.extend([onnx.helper.make_empty_tensor_value_info(node.output[0])])
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    own, seen = (
        session.run([node.output[0]], {model.graph.input[0].name: each.numpy()})[0] for each in (calibration, others)
    )
    coverage = found[node.name]
    assert (coverage.low, coverage.high) == pytest.approx((min(0.0, own.min()), own.max()), rel=1e-5)
    assert coverage.beyond == pytest.approx(np.mean((seen > own.max()) | (seen < own.min())), abs=1e-4)
    assert (coverage.seen_low, coverage.seen_high) == pytest.approx((seen.min(), seen.max()), rel=1e-5)


def test_a_runtime_that_cannot_tell_covers_nothing():
    assert TOY.coverage(b"", b"", [], []) == []


@pytest.mark.parametrize(
    ("most", "counts"), [(8, [8]), (9, [8, 9]), (64, [8, 16, 32, 64]), (100, [8, 16, 32, 64, 100]), (5, [5])]
)
def test_rungs_double_up_to_all(most, counts):
    assert _counts(most) == counts


def test_draws_are_disjoint_where_there_are_enough():
    pool = list(range(100, 140))
    draws = list(_draws(pool, 8))
    assert len({image for draw in draws for image in draw}) == 32
    assert [len(set(draw)) for draw in _draws(pool, 30)] == [30] * 4
    assert list(_draws(pool, 40)) == [pool]
    assert len({tuple(draw) for draw in _draws(pool, 30)}) == 4


class Sure(nn.Module):
    """Sure of its answers for normalised images alone."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        off = (images.mean((1, 2, 3)).abs() + (images.std() - 1).abs()).mul(10).clamp_max(5)
        return torch.stack([6 - off, torch.zeros_like(off)], 1)


class _Network:
    fixed_batch = None

    def run(self, batch: torch.Tensor) -> torch.Tensor:
        return Sure()(batch)


def pictures(seed: int) -> torch.Tensor:
    """Pixels from 0 to 255, as dark and as colourful as photographs are."""
    generator = torch.Generator().manual_seed(seed)
    return (115 + 58 * torch.randn(16, 3, 8, 8, generator=generator)).clamp(0, 255)


def test_raw_pixels_beside_normalised_ones_are_recognised():
    normalised = (pictures(1) / 255 - 0.45) / 0.22
    (note,) = _preparation_notes(CLASSIFICATION, _Network(), [pictures(0)], [normalised])
    assert "The calibration images look like raw pixels" in note
    assert list(_preparation_notes(CLASSIFICATION, _Network(), [normalised], [normalised])) == []


@pytest.mark.parametrize(
    ("divisor", "words"), [(1.0, "divided by 255 and normalised"), (255.0, "raw pixels: normalised")]
)
def test_pixels_that_are_raw_throughout_are_recognised_where_the_network_is_surer_otherwise(divisor, words):
    raw = pictures(0) / divisor
    (note,) = _preparation_notes(CLASSIFICATION, _Network(), [raw], [pictures(1) / divisor])
    assert words in note


def check(*rungs: tuple[int, tuple[float, ...]], **parts) -> CalibrationCheck:
    made = tuple(CalibrationRung(images=images, values=values) for images, values in rungs)
    return CalibrationCheck(metric="agreement", rungs=made, images=104, **parts)


def test_the_ladder_says_from_where_on_the_draw_does_not_matter():
    found = check((16, (0.71, 0.86, 0.8)), (64, (0.93, 0.925)), (128, (0.93,)))
    assert found.enough == 64
    first, then = found.findings[0].split("; ")
    assert first == "Answers that stay with 16 calibration images: 71.0 to 86.0 % by chance of the draw"
    assert "from 64 on it is 93.0 % (measured on 104 images)." in then


def test_the_fewest_images_may_be_enough():
    found = check((8, (1.0, 1.0, 1.0, 1.0)), (16, (1.0, 1.0)), (32, (1.0,)))
    assert found.findings[0] == (
        "Answers that stay with 8 calibration images: 100 % in 4 draws, and 100 % with all 32 "
        "(measured on 104 images): 8 are enough."
    )


def test_a_ladder_that_has_not_settled_asks_for_more():
    found = check((16, (0.71, 0.86)), (32, (0.8, 0.9)), (64, (0.93,)))
    assert found.enough is None
    assert "it has not settled, so bring more images" in found.findings[0]


def test_few_images_are_one_rung():
    assert "too few images to draw some of them" in check((6, (0.9,))).findings[0]


def test_a_dip_in_the_middle_is_not_enough():
    assert check((8, (0.93, 0.93)), (16, (0.8, 0.93)), (32, (0.93, 0.93)), (64, (0.93,))).enough == 32


def test_too_few_images_and_another_domain_are_told_apart():
    worst = TensorCoverage(node="n", low=0.0, high=6.0, seen_low=0.0, seen_high=14.0, beyond=0.021, values=900)
    few = check((8, (0.9,)), tensors=50, num_uncovered=1, uncovered=(worst,), beyond=0.01, own_beyond=0.008)
    assert "do not cover 1 of 50 tensors (n): in n, 2.1 % of the values" in few.findings[1]
    assert few.findings[1].endswith("they are too few to show the whole range: bring more.")
