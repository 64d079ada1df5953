"""Class numbers of annotations as outputs of a model: which readings fit, which comes first, and what is certain."""

from typing import Any

import pytest
import torch

from senseapp.core.errors import InvalidDataset
from senseapp.metrics.detection.rows import RowKind, assembled
from senseapp.metrics.segmentation import VOID
from senseapp.tasks import TASKS
from senseapp.tasks.annotations import AnnotationFiles
from senseapp.tasks.class_numbers import Background, ModelClasses, WrittenClasses, class_readings, fit_numbers
from senseapp.tasks.segmentation.masks import MASKS

COCO = ("person", "bicycle", "car", "motorcycle")


def model(num_outputs: int, background: Background = "none", names: tuple[str, ...] = ()) -> ModelClasses:
    return ModelClasses(num_outputs=num_outputs, background=background, names=names)


def written(used: Any, names: Any = (), **more: Any) -> WrittenClasses:
    listed = names if isinstance(names, dict) else dict(enumerate(names))
    return WrittenClasses(used=set(used), names=listed, **more)


def outputs(found: WrittenClasses, classes: ModelClasses) -> list[list[int]]:
    """Return the output of each used class, -1 for none, of each reading."""
    labels = [found.labels[number] for number in sorted(found.used)]
    return [[dict(each.pairs).get(label, -1) for label in labels] for each in class_readings(found, classes)]


@pytest.mark.parametrize(
    ("found", "classes", "expected", "certain"),
    [
        # labels 0…3: five sigmoids, four, and softmax with a background at either end
        (written(range(4)), model(5), [[0, 1, 2, 3], [1, 2, 3, 4]], False),
        (written(range(4)), model(4), [[0, 1, 2, 3]], True),
        (written(range(4)), model(5, "first"), [[1, 2, 3, 4]], True),
        (written(range(4)), model(5, "last"), [[0, 1, 2, 3]], True),
        (written(range(4)), model(5, names=("__background__", *"abcd"), background="unknown"), [[1, 2, 3, 4]], True),
        # numbers from 1
        (written(range(1, 5)), model(4), [[0, 1, 2, 3]], True),
        (written(range(1, 5)), model(5, "first"), [[1, 2, 3, 4]], True),
        (written(range(1, 5)), model(5), [[1, 2, 3, 4], [0, 1, 2, 3]], False),
        # some classes only
        (written([1, 2]), model(5), [[1, 2], [2, 3], [0, 1]], False),
        (written([2, 3], COCO), model(4), [[2, 3]], True),
        (written([2, 4], dict(enumerate(COCO, 1))), model(4), [[1, 3]], True),
        # gaps
        (written([1, 3, 90], {1: "a", 3: "b", 18: "c", 90: "d"}), model(4), [[0, 1, 3]], True),
        (written([1, 3, 90], {1: "a", 3: "b", 18: "c", 90: "d"}), model(91, "first"), [[1, 3, 90]], True),
        (written([3, 7], {3: "a", 7: "b"}), model(3, "unknown"), [], False),
        (written([3, 7], {3: "a", 7: "b"}), model(3, "first"), [[1, 2]], True),
        (written([3, 7, 9]), model(3), [], False),
        # categories that have no objects
        (written([1, 3, 4], {n: f"c{n}" for n in range(80)}), model(3), [[0, 1, 2]], False),
        (written([1, 2, 3], {n: f"c{n}" for n in range(80)}), model(3), [[0, 1, 2]], True),
        # names
        (written([0, 1], ["Bicycle", "CAR"]), model(4, names=COCO), [[1, 2]], True),
        (written([0, 1], ["car", "zebra"]), model(4, names=COCO), [[2, -1]], True),
        (written([0, 1, 2], ["car", "a", "b"]), model(4, names=COCO), [[2, -1, -1], [0, 1, 2], [1, 2, 3]], False),
        (written([0, 1, 2], ["car", "a", "b"]), model(1, names=("car",)), [[0, -1, -1]], True),
        (written([0, 1, 2, 3], ["a", "b", "c", "d"]), model(4, names=COCO), [[0, 1, 2, 3]], False),
        (written([0, 1], ["b", "a"]), model(2, names=("class0", "class1")), [[0, 1]], True),
        (written([1, 2], {1: "1", 2: "2"}), model(2, names=("0", "1")), [[0, 1]], True),
        # names without numbers
        (written([0, 1], ["cat", "dog"], numbered=False), model(2), [[0, 1]], False),
        (written([0, 1], ["cat", "dog"], numbered=False), model(3, "first"), [[1, 2]], False),
        (written([0, 1], ["cat", "dog"], numbered=False), model(3), [], False),
        (written([0, 1], ["cat", "dog"], numbered=False), model(3, names=("dog", "cat", "cow")), [[1, 0]], True),
        (written([0, 1], ["cat", "dog"], numbered=False), model(80), [], False),
        # numbers that no output can be
        (written(range(8)), model(5), [], False),
        (written([]), model(5), [[]], True),
    ],
)
def test_readings(found: WrittenClasses, classes: ModelClasses, expected: list[list[int]], certain: bool) -> None:
    assert outputs(found, classes) == expected
    first, *others = class_readings(found, classes) or [None]
    assert bool(first and first.certain) == certain
    assert not any(each.certain for each in others)
    assert not first or (first.num_orders == 1) == certain


@pytest.mark.parametrize(
    ("found", "classes", "pairs", "expected"),
    [
        (written([0, 1], ["cat", "dog"]), model(4), [("dog", 3)], {"dog": 3}),
        (written([0, 1], ["cat", "dog"]), model(4), [("0", 2), ("dog", 3)], {"cat": 2, "dog": 3}),
        (written([5, 7]), model(4), [("7", 0), ("5", 1), ("6", 2)], {"7": 0, "5": 1}),
        (written([0, 1], ["1", "0"]), model(4), [("1", 3)], {"1": 3}),
        (written([0, 1], ["same", "same"]), model(4), [("1", 3)], {"1": 3}),
        (written([0, 1], ["cafe\u0301", "dog"]), model(4), [("caf\u00e9", 3)], {"cafe\u0301": 3}),
    ],
)
def test_a_class_map_wins(
    found: WrittenClasses, classes: ModelClasses, pairs: list[tuple[str, int]], expected: dict[str, int]
) -> None:
    fitted = fit_numbers(tuple(found.used), found, classes, lambda _, meaning: meaning, confirmed=pairs)
    assert fitted.values == {number: expected[label] for number, label in found.labels.items() if label in expected}
    assert fitted.orders == ()
    left = [label for label in found.labels.values() if label not in expected]
    assert fitted.notes == ((f"Left out, as they mean no class of the model: {', '.join(left)}.",) if left else ())


@pytest.mark.parametrize(
    ("kinds", "expected"),
    [
        ([RowKind.SOFTMAX], "first"),
        ([RowKind.ANCHOR, RowKind.PROPOSAL], "first"),
        ([RowKind.SOFTMAX_LAST], "last"),
        ([RowKind.SIGMOID], "none"),
        ([RowKind.OBJECT_TIMES_CLASS], "none"),
        ([RowKind.ROOT_OF_PRODUCT], "none"),
        ([RowKind.ANCHOR], "unknown"),
    ],
)
def test_the_background_of_a_detector(kinds: list[RowKind], expected: Background) -> None:
    boxes = torch.zeros(2, 3, 4)
    rows = [assembled(boxes, kind, logits=torch.zeros(2, 3, 5), objects=None, num_classes=5) for kind in kinds]
    assert TASKS["detection"].background(torch.cat(rows, dim=1)) == expected


def test_what_no_output_can_be_is_refused_with_the_flag_that_helps() -> None:
    with pytest.raises(InvalidDataset, match=r"classes 0, 1, 2, 3, …, and the model has 5 outputs: .*--class-map FILE"):
        fit_numbers((), written(range(8)), model(5), lambda values, _: values)


def test_a_doubt_is_said() -> None:
    fitted = fit_numbers((), written(range(4)), model(5), lambda values, _: values)
    assert fitted.notes == (
        "Class numbers are only assumed: as written; one above those in the files would fit as well.",
    )
    fitted = fit_numbers((), written([0, 1], ["a", "b"]), model(2, names=("c", "d")), lambda values, _: values)
    assert fitted.notes == (
        "None of the names in the annotations is one of the model's classes.",
        "Class numbers are only assumed: as written; any other order would fit as well.",
    )
    assert fitted.names == ("c", "d")


# ---- masks


def numbers_of(values: list[int], num_classes: int, order: int = 0, **more: Any) -> list[int]:
    """Return what values of masks are read as, by one of the readings that fit."""
    masks = torch.tensor(values, dtype=torch.uint8).reshape(1, 1, -1)
    fitted = MASKS.fitted(masks, AnnotationFiles(**more), model(num_classes, "unknown"))
    if not order:
        return fitted.values.flatten().tolist()
    assert fitted.read_as is not None
    return fitted.read_as(fitted.written, fitted.orders[order])[0].flatten().tolist()


@pytest.mark.parametrize(
    ("values", "num_classes", "expected"),
    [
        ([1, 2, 3, 4], 4, [0, 1, 2, 3]),
        ([0, 1, 2, 3, 4], 4, [VOID, 0, 1, 2, 3]),
        ([0, 1, 2, 3, VOID], 4, [0, 1, 2, 3, VOID]),
        ([0, 85, 170, 255], 4, [0, 1, 2, 3]),
        ([0, 170], 4, [0, 2]),
        ([0, 127, 255], 3, [0, 1, 2]),
        ([0, 128], 2, [0, 1]),
        ([0, 255], 2, [0, 1]),
        ([0, 1, 255], 2, [0, 1, VOID]),
        ([1, 2, 3], 3, [0, 1, 2]),  # trimaps
        ([0, 50, 100, 150], 4, [0, 1, 2, 3]),
        ([0, 50, 100, 150], 3, [VOID, 0, 1, 2]),
        ([7, 33, 26, 4], 19, [0, 18, 13, VOID]),
    ],
)
def test_values_of_masks(values: list[int], num_classes: int, expected: list[int]) -> None:
    assert numbers_of(values, num_classes) == expected


def test_ids_of_cityscapes_are_named() -> None:
    fitted = MASKS.fitted(torch.tensor([[[7, 33, 26, 4]]], dtype=torch.uint8), AnnotationFiles(), model(19, "unknown"))
    assert "ids of Cityscapes" in fitted.notes[0]


def test_masks_that_may_count_from_0_or_1_have_both_readings() -> None:
    assert numbers_of([0, 1, 2], 4) == [0, 1, 2]
    assert numbers_of([0, 1, 2], 4, order=1) == [1, 2, 3]
    assert numbers_of([0, 1, 2], 4, order=2) == [VOID, 0, 1]
    assert numbers_of([0, 1, 2, 3], 4, names=("", "a", "b", "c")) == [0, 1, 2, 3]


@pytest.mark.parametrize("values", [[0, 7, 9, 200], [*range(256)], [0, 1, 2, 77]])
def test_masks_with_values_that_mean_nothing_are_refused(values: list[int]) -> None:
    with pytest.raises(InvalidDataset, match=r"The annotations have the classes .*, and the model has 3 outputs"):
        numbers_of(values, 3)
