"""Values: what a network may return, and metrics against NumPy."""

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor

from senseapp.core.errors import UnsupportedModel
from senseapp.data.load import load_images
from senseapp.metrics import METRICS
from senseapp.metrics.bounds import upper_bound_of_sums
from senseapp.networks.loaded import Preprocessing
from senseapp.prove.answers import changed_answers
from senseapp.records.spec import DataSpec
from senseapp.tasks import CLASSIFICATION, MULTILABEL, SEGMENTATION, Task, task_named
from tests.pictures import png

Array = npt.NDArray[np.float64]
VALUES = task_named("values")
COUNT = 12


def outputs(seed: int) -> tuple[Tensor, dict[str, Tensor]]:
    """A small vector of large numbers, and a map of small ones."""
    generator = torch.Generator().manual_seed(seed)
    return 1000 * torch.randn(COUNT, 5, generator=generator), {
        "map": 1e-3 * torch.randn(COUNT, 2, 7, 9, generator=generator)
    }


def flat(raw: tuple[Tensor, dict[str, Tensor]]) -> list[Array]:
    return [each.double().numpy().reshape(COUNT, -1) for each in (raw[0], raw[1]["map"])]


def measured(metric: str, before: object, after: object) -> float:
    old, new = (VALUES.predictions(each) for each in (before, after))
    return METRICS[metric].change(METRICS[metric].moments(old, new, None)).delta


def near(raw: tuple[Tensor, dict[str, Tensor]], size: float) -> tuple[Tensor, dict[str, Tensor]]:
    moved = outputs(1)
    return raw[0] + size * moved[0], {"map": raw[1]["map"] + size * moved[1]["map"]}


@pytest.mark.parametrize("size", [1e-4, 0.1, 3.0])
def test_metrics_are_those_of_numpy(size: float) -> None:
    before, after = outputs(0), near(outputs(0), size)
    pairs = list(zip(flat(before), flat(after), strict=True))
    errors = np.stack([((b - a) ** 2).sum(1) / (a**2).sum(1) for a, b in pairs])
    cosines = [(a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1) for a, b in pairs]
    assert measured("squared_error", before, after) == pytest.approx(errors.mean(), rel=1e-9)
    assert measured("fidelity", before, after) == pytest.approx(np.minimum(errors, 1).mean(), rel=1e-9)
    assert measured("cosine_distance", before, after) == pytest.approx(1 - np.mean(cosines), rel=1e-6, abs=1e-15)


def test_each_output_counts_the_same_whatever_its_scale() -> None:
    before = outputs(0)
    only = [(near(before, 0.1)[0], before[1]), (before[0], near(before, 0.1)[1])]
    alone = [
        np.mean(((a - b) ** 2).sum(1) / (b**2).sum(1))
        for a, b in zip(flat(near(before, 0.1)), flat(before), strict=True)
    ]
    assert [measured("squared_error", before, each) for each in only] == pytest.approx([each / 2 for each in alone])


@pytest.mark.parametrize("metric", ["squared_error", "fidelity", "cosine_distance"])
def test_what_does_not_change_loses_nothing_and_nan_loses_all(metric: str) -> None:
    before = outputs(0)
    assert measured(metric, before, before) == 0
    spoilt = before[0].clone()
    spoilt[3, 2] = torch.nan
    assert measured(metric, before, (spoilt, before[1])) in (pytest.approx(1 / (2 * COUNT)), float("inf"))
    zeros = (torch.zeros_like(before[0]), before[1])
    assert measured(metric, zeros, zeros) == 0
    assert measured(metric, zeros, before) in (pytest.approx(0.5), pytest.approx(0.25))


def test_words_are_in_percent_and_decibels() -> None:
    error, fidelity = METRICS["squared_error"], METRICS["fidelity"]
    assert error.change_text(0.01) == "1.000 % (20.0 dB)"
    assert error.change_text(3.0) == "300 % (−4.8 dB)"
    assert error.change_text(0.0) == "0 %"
    assert [fidelity.value_text(each) for each in (1.0, 1 - 1e-9, 0.9876)] == ["100 %", "99.99 %", "98.76 %"]


def test_the_bound_of_fidelity_is_that_of_a_mean_from_0_to_1() -> None:
    before, after = outputs(0), near(outputs(0), 0.7)
    metric, (old, new) = METRICS["fidelity"], (VALUES.predictions(each) for each in (before, after))
    each = metric.terms(old.double(), new.double(), None)[1].numpy()
    moments = metric.moments(old, new, None)
    sums = float(each.sum()), float((each**2).sum())
    assert metric.upper_bound(moments) == pytest.approx(upper_bound_of_sums(len(each), sums, 0, 1), rel=1e-9)
    assert metric.upper_bound(moments) > metric.change(moments).ci_high


@pytest.mark.parametrize(
    "raw",
    [
        torch.zeros(4),
        torch.zeros(4, 3, 2, 2, 2),
        [torch.zeros(4, 3), None, "text"],
        {"a": (torch.zeros(4, 2, dtype=torch.float16),), "b": [torch.zeros(4, dtype=torch.int64)]},
        (torch.zeros(4, 6), torch.zeros(1, 5, 4)),  # anchors, the same for all images
    ],
)
def test_any_nesting_of_tensors_is_read(raw: object) -> None:
    VALUES.check_output(raw, 4)
    found = VALUES.output(raw)
    assert found.shape[0] == 4
    assert found.dtype == torch.float32


@pytest.mark.parametrize(
    "raw", ["text", None, [], torch.zeros(4, dtype=torch.int64), torch.zeros(3, 2), torch.zeros(()), torch.zeros(4, 0)]
)
def test_what_holds_no_numbers_of_each_image_is_refused(raw: object) -> None:
    with pytest.raises(UnsupportedModel, match="floating-point numbers of each of 4 images; it returned"):
        VALUES.check_output(raw, 4)


def test_what_is_left_out_is_said() -> None:
    raw = [torch.zeros(4, 6), torch.zeros(4, dtype=torch.int64), torch.zeros(3, 7)]
    assert "2 outputs left out: whole numbers, and" in VALUES.predictions_note(raw)
    assert VALUES.output(raw).shape == (4, 1, 6)


def test_predictions_keep_always_the_same_values_within_the_memory() -> None:
    before, after = ((torch.randn(8, 3, 50, 60), torch.randn(8, 40)) for _ in range(2))
    allowed = 8000
    kept = [VALUES.predictions(each, most_bytes=allowed) for each in (before, after)]
    assert 4 * kept[0][0].numel() <= allowed
    assert VALUES.predictions_note(before, most_bytes=allowed).startswith(
        "Outputs are compared at 1,040 of 9,040 values"
    )
    both = VALUES.predictions(tuple(torch.cat(pair) for pair in zip(before, after, strict=True)), most_bytes=allowed)
    assert torch.equal(both, torch.cat(kept))
    whole, part = (
        METRICS["squared_error"].moments(*each, None)[2]
        for each in ([VALUES.output(before), VALUES.output(after)], kept)
    )
    assert part == pytest.approx(whole, rel=0.1)


def test_a_huge_output_takes_no_memory_before_it_is_measured() -> None:
    raw = tuple(torch.zeros(()).expand(1, side, 10**6) for side in (10**6, 3))
    VALUES.check_output(raw, 1)
    assert VALUES.num_outputs(VALUES.output(raw)) == 2


def test_labels_are_left_alone_with_one_sentence(tmp_path: Path) -> None:
    for number in range(6):
        folder = tmp_path / f"class{number % 3}"
        folder.mkdir(exist_ok=True)
        (folder / f"{number}.png").write_bytes(png(number))
    (tmp_path / "labels.csv").write_text("file,cat,dog\nclass0/0.png,1,1\n")
    preprocessing = Preprocessing(input_shape=(3, 16, 16), mean=(0.5,) * 3, std=(0.5,) * 3)
    spec = DataSpec(kind="folder", path=str(tmp_path))
    images = load_images(spec, preprocessing, num_classes=1, task=VALUES)
    assert images.labels is None
    assert images.notes == ("Labels are not read: outputs are compared with the original model's.",)
    assert (
        changed_answers(
            torch.ones(6, 1, 3), torch.zeros(6, 1, 3), images, task=VALUES, names=(), subject="all"
        ).num_changed
        == 6
    )  # type: ignore[union-attr]


@pytest.mark.parametrize("shape", [(4, 10, 1, 1), (4, 1, 10), (4, 1, 1, 10), (4, 10)])
@pytest.mark.parametrize("task", [CLASSIFICATION, MULTILABEL])
def test_axes_of_length_1_make_no_other_task_of_class_scores(task: Task, shape: tuple[int, ...]) -> None:
    scores = torch.randn(4, 10)
    raw = scores.reshape(shape)
    task.check_output(raw, 4)
    assert torch.equal(task.output(raw), scores)
    assert torch.equal(task.predictions(raw), scores)  # type: ignore[arg-type]
    assert task.num_outputs(task.output(raw)) == 10
    with pytest.raises(UnsupportedModel):
        SEGMENTATION.check_output(raw, 4)
