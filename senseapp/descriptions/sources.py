"""Where networks and images come from: libraries, a checkpoint alone, the demos, tables of figures, published sets."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from senseapp.core.errors import InvalidSpec
from senseapp.core.registry import Registry, object_at


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSource:
    """One origin of networks, named by the first part of a model's title: ``timm/resnet18``.

    Attributes:
        name, label: in titles, settings and files; in the list of the Analyze page.
        loader: ``module:name`` of a function that takes a :class:`~senseapp.records.spec.ModelSpec` and a function
            called with a sentence before each long step, and returns a
            :class:`~senseapp.networks.loaded.LoadedModel`; it may load torch. Empty where there is no network to run.
        task: what its networks do, one of :data:`senseapp.tasks.TASKS`, or a function of a network's name that returns
            that; empty where the user has to choose it.
        names: of its networks; None where the catalogue lists them, or a checkpoint says which.
        needs_name: whether a model has to be named.
        reads: what it does with the file that it needs, as ``recognises a checkpoint``; empty where it needs none.
        chooses_outputs: whether a setting names the values of the file that are measured.
        upload: what a person's uploads for it are kept as.
        help: one line on it for the Analyze page.
    """

    name: str
    label: str
    loader: str
    task: str | Callable[[str], str] = ""
    names: tuple[str, ...] | None = None
    needs_name: bool = False
    reads: str = ""
    chooses_outputs: bool = False
    upload: str = "checkpoint"
    help: str = ""

    @property
    def is_runnable(self) -> bool:
        """Whether there is a network to run, and not only what was measured of one."""
        return bool(self.loader)

    def task_of(self, name: str) -> str:
        """Return the task of the network with this name; empty if the user has to choose it."""
        return self.task if isinstance(self.task, str) else self.task(name)

    def check(self, name: str) -> None:
        """Raise InvalidSpec unless ``name`` may be one of its networks."""
        if self.names is not None and name not in self.names:
            known = ", ".join(f"{self.name}/{each}".removesuffix("/") for each in self.names)
            raise InvalidSpec(f"The {self.name} networks are {known}, got {self.name}/{name}.")
        if self.needs_name and not name:
            raise InvalidSpec(f"A {self.name} model needs a name, for example {self.name}/resnet18.")

    def load(self) -> Callable[..., Any]:
        """Import and return its loader."""
        found: Callable[..., Any] = object_at(self.loader)
        return found


def _task_in_torchvision(name: str) -> str:
    """Return the task in the catalogue; networks of a torchvision that is newer than the catalogue are classifiers."""
    known: str = object_at("senseapp.networks.sources.catalogue:task_of_architecture")("torchvision", name)
    return known or "classification"


DEMO = ModelSource(
    name="demo",
    label="Demo",
    loader="senseapp.networks.sources.load:load_demo",
    task=lambda name: "detection" if name == "shapes_detector" else "classification",
    names=("", "efficientnet_lite0", "shapes_detector"),
    help="They ship with senseapp: nothing to download.",
)
TIMM = ModelSource(
    name="timm",
    label="Library",
    loader="senseapp.networks.sources.load:load_architecture",
    task="classification",
    needs_name=True,
)
TORCHVISION = ModelSource(
    name="torchvision",
    label="Library",
    loader="senseapp.networks.sources.load:load_architecture",
    task=_task_in_torchvision,
    needs_name=True,
)
CHECKPOINT = ModelSource(
    name="auto",
    label="Your weights (.pt, .safetensors)",
    loader="senseapp.networks.sources.load:load_architecture",
    task="classification",  # until an architecture with another task is recognised
    reads="recognises a checkpoint",
)
ONNX = ModelSource(
    name="onnx",
    label="Your network (.onnx)",
    loader="senseapp.networks.onnx.source:load_onnx",
    names=("",),
    reads="measures an ONNX file",
    chooses_outputs=True,
    upload="onnx",
    help="Any network, exported once: its layers keep the names that they have in the file.",
)
IMPORTED = ModelSource(name="imported", label="Imported figures", loader="")

SOURCES: Registry[ModelSource] = Registry(
    "model library",
    group="senseapp.sources",
    own=tuple(f"{__name__}:{name}" for name in ("DEMO", "TIMM", "TORCHVISION", "CHECKPOINT", "ONNX", "IMPORTED")),
)
"""All sources of networks, in the order in which they are offered."""


@dataclass(frozen=True, slots=True)
class ImageSetFacts:
    """Facts about an image set before it is downloaded; ``name`` is as it is written after ``torchvision/``.

    Images are those of the part that is measured on: the test images, or all where no part was set aside.
    """

    name: str
    title: str
    line: str
    num_images: int
    num_classes: int
    megabytes: int


_ALL = (  # name, title, line, images, classes, megabytes
    ImageSetFacts("cifar10", "CIFAR-10", "animals and vehicles, 32 × 32 pixels", 10_000, 10, 170),
    ImageSetFacts("cifar100", "CIFAR-100", "things of a hundred kinds, 32 × 32 pixels", 10_000, 100, 169),
    ImageSetFacts("mnist", "MNIST", "handwritten digits, grey, 28 × 28 pixels", 10_000, 10, 12),
    ImageSetFacts("fashion_mnist", "Fashion-MNIST", "clothes, grey, 28 × 28 pixels", 10_000, 10, 31),
    ImageSetFacts("kmnist", "Kuzushiji-MNIST", "handwritten Japanese, grey, 28 × 28 pixels", 10_000, 10, 21),
    ImageSetFacts("svhn", "SVHN", "house numbers, 32 × 32 pixels", 26_032, 10, 64),
    ImageSetFacts("imagenette", "Imagenette", "photos of ten ImageNet classes, 160 pixels high or wide", 3_925, 10, 99),
    ImageSetFacts("eurosat", "EuroSAT", "land seen from a satellite, 64 × 64 pixels", 27_000, 10, 94),
    ImageSetFacts("flowers102", "Oxford 102 Flowers", "photos of flowers", 6_149, 102, 345),
    ImageSetFacts("oxford_pets", "Oxford-IIIT Pets", "photos of cats and dogs of 37 breeds", 3_669, 37, 811),
)

IMAGE_SETS: Mapping[str, ImageSetFacts] = MappingProxyType({facts.name: facts for facts in _ALL})
"""By name, in the order in which they are offered."""
