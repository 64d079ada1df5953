"""What a model does: said, or taken from its source."""

import pytest

from senseapp.core.errors import InvalidSpec
from senseapp.records.spec import ModelSpec
from senseapp.tasks import TASKS


@pytest.mark.parametrize(
    ("library", "name", "task"),
    [
        ("demo", "", "classification"),
        ("demo", "shapes_detector", "detection"),
        ("timm", "resnet18", "classification"),
        ("torchvision", "resnet18", "classification"),
        ("torchvision", "fcn_resnet50", "segmentation"),
        ("torchvision", "ssdlite320_mobilenet_v3_large", "detection"),
        ("auto", "", "classification"),
    ],
)
def test_a_source_says_what_its_networks_do(library: str, name: str, task: str) -> None:
    assert ModelSpec(library=library, name=name).task == task
    assert ModelSpec(library=library, name=name, task="multilabel").task == "multilabel"


@pytest.mark.parametrize("library", ["onnx", "imported"])
def test_a_model_whose_source_does_not_say_it_needs_a_task(library: str) -> None:
    with pytest.raises(InvalidSpec, match=f"^{library} does not say what it does. Choose a task: {', '.join(TASKS)}"):
        ModelSpec(library=library)
