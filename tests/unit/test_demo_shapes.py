"""The third demo: pictures of shapes made by code, and the detector that finds them."""

import numpy as np
import pytest
import torch

from senseapp.core.errors import InvalidDataset, InvalidSpec
from senseapp.data.demo_pictures import covered, load_shapes, photograph_crop, shapes
from senseapp.data.load import load_images
from senseapp.metrics.detection.matching import detections_of
from senseapp.networks.loaded import Preprocessing
from senseapp.networks.sources.load import load_model
from senseapp.records.spec import NUM_MEASURED_SHAPES, NUM_SHAPES, SHAPE_NAMES, SHAPE_SIDE, DataSpec, ModelSpec
from senseapp.server.inputs import DETECTION_DEMO
from senseapp.tasks.detection import DETECTION

_STRONGEST = {1: 0, 2: 1, 3: 2}  # channel of red, green and blue


def prepared(side: int = SHAPE_SIDE, channels: int = 3) -> Preprocessing:
    return Preprocessing(input_shape=(channels, side, side), mean=(0.5,) * channels, std=(0.25,) * channels)


def test_boxes_lie_around_what_they_name() -> None:
    for index in (0, 7, NUM_MEASURED_SHAPES, NUM_SHAPES - 1):
        picture, found = shapes(index)
        again, _ = shapes(index)
        np.testing.assert_array_equal(picture, again)
        assert picture.shape == (SHAPE_SIDE, SHAPE_SIDE, 3)
        label, left, top, right, bottom = found[-1]  # which nothing lies on
        inside = picture[top:bottom, left:right].reshape(-1, 3).mean(axis=0)
        assert int(inside.argmax()) == _STRONGEST[label]
        assert inside.max() > inside.min() + 40
        assert all(not covered(one, later[1:]) for place, one in enumerate(found) for later in found[place + 1 :])


def test_pictures_that_are_left_to_check_lie_on_other_photographs() -> None:
    crops = [
        np.asarray(photograph_crop(np.random.default_rng(seed), measured=measured, side=8))
        for measured in (True, False)
        for seed in range(3)
    ]
    assert all(not np.array_equal(one, other) for one, other in zip(crops[:3], crops[3:], strict=True))


def test_boxes_follow_the_picture_to_another_size() -> None:
    own, large = (load_shapes(prepared(side), 3, with_boxes=True) for side in (SHAPE_SIDE, 4 * SHAPE_SIDE))
    assert own.labels is not None
    assert large.labels is not None
    for small, big in zip(own.labels, large.labels, strict=True):
        torch.testing.assert_close(4 * small["boxes"], big["boxes"])
        assert small["labels"].tolist() == big["labels"].tolist()


def test_there_are_boxes_only_for_the_network_that_knows_them() -> None:
    def loaded(**settings: object) -> object:
        return load_images(
            DataSpec(kind="shapes"), prepared(), num_classes=4, task=DETECTION, num_samples=2, **settings
        ).labels

    assert loaded() is None
    assert loaded(class_names=SHAPE_NAMES, with_labels=False) is None
    assert loaded(class_names=SHAPE_NAMES) is not None


def test_what_cannot_be_loaded_is_refused() -> None:
    with pytest.raises(InvalidDataset, match="have 3 channels, and this model takes 5"):
        load_shapes(prepared(channels=5), 2, with_boxes=False)
    with pytest.raises(InvalidSpec, match="The demo brings its own weights"):
        load_model(ModelSpec(library="demo", name="shapes_detector", num_classes=3))


def test_the_detector_finds_most_of_what_it_was_not_trained_on() -> None:
    """Counted by hand: the class is right and the overlap is at least half."""
    model = load_model(DETECTION_DEMO.model)
    assert model.task == DETECTION.name
    images = load_shapes(model.preprocessing, NUM_SHAPES, with_boxes=True)
    assert images.labels is not None
    first = NUM_MEASURED_SHAPES
    predictions = DETECTION.predictions(model.module(images.batch(first, NUM_SHAPES)))
    hits = total = 0
    for candidates, truth in zip(predictions.parts["candidates"], images.labels[first:], strict=True):
        found = detections_of(candidates, 0.3)
        for box, label in zip(truth["boxes"].numpy(), truth["labels"].tolist(), strict=True):
            total += 1
            hits += any(int(row[1]) == label and overlap(row[2:], box) >= 0.5 for row in found)
    assert total >= 200
    assert hits / total > 0.7


def overlap(one: np.ndarray, other: np.ndarray) -> float:
    sides = np.minimum(one[2:], other[2:]) - np.maximum(one[:2], other[:2])
    shared = float(np.prod(sides.clip(0)))
    return shared / (sum([float(np.prod(each[2:] - each[:2])) for each in (one, other)]) - shared)
