"""A source of networks from outside: everything that an engineer writes for a new one."""

from __future__ import annotations

from collections.abc import Callable

from senseapp.core.errors import UnknownModel
from senseapp.descriptions import ModelSource
from senseapp.networks.loaded import LoadedModel, Preprocessing
from senseapp.records.spec import ModelSpec
from tests.small_models import NUM_CLASSES, small_network

TOY = ModelSource(
    name="toys",
    label="Toy networks",
    loader="tests.toy_source:load",
    task="classification",
    names=("first", "second"),
    help="Two networks of a test.",
)


def load(spec: ModelSpec, report: Callable[[str], None]) -> LoadedModel:
    """Return one of the two, with random weights from a seed."""
    if spec.name not in (TOY.names or ()):
        raise UnknownModel(f"There is no toy called {spec.name!r}.")
    report("Making a toy")
    module = small_network(seed=(TOY.names or ()).index(spec.name))
    return LoadedModel(
        module=module.eval().requires_grad_(False),
        title=spec.title,
        preprocessing=Preprocessing(input_shape=(3, 16, 16), mean=(0.5,) * 3, std=(0.5,) * 3),
        num_classes=NUM_CLASSES,
        pretrained=False,
    )
