"""Settings: the model, the images and the sensitivity measurement of a run, and those of a histogram."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import PurePath
from typing import Any, Literal, TypeVar, cast, get_args

from senseapp.core.codec import register_family
from senseapp.core.errors import InvalidSpec, check_choice, check_counts
from senseapp.descriptions import SOURCES, CompressionConfig, all_descriptions
from senseapp.descriptions.sources import IMAGE_SETS
from senseapp.descriptions.targets import TARGETS, USUAL_TARGET
from senseapp.metrics import METRICS
from senseapp.tasks import TASKS, task_named
from senseapp.tasks.reading import ChannelOrder, Evidence, Fit, Reading

SettingsT = TypeVar("SettingsT")
Mode = Literal["exact", "quick"]
Precision = Literal["fp32", "bf16", "auto"]
Preparation = Literal["given", "auto"]
DataKind = Literal["demo", "photographs", "shapes", "random", "folder", "archive", "torchvision", "imported"]

NUM_DIGITS = 897
"""Of the shipped digits, those that the demo network was not trained on."""

NUM_PHOTOGRAPHS = 160
"""Crops of the shipped photographs; the first :data:`NUM_MEASURED_PHOTOGRAPHS` share no scene with the others."""
NUM_MEASURED_PHOTOGRAPHS = 48  # the crops to measure on; the rest prove
NUM_SHAPES = 224
"""Pictures of the detection demo; the first :data:`NUM_MEASURED_SHAPES` lie on other photographs than the rest."""
NUM_MEASURED_SHAPES = 96  # the pictures to measure on; the rest prove
SHAPE_SIDE = 64
"""Height and width of such a picture, in pixels."""
SHAPE_NAMES = ("background", "red", "green", "blue")
"""Classes of the demo's detector."""
MOST_RANDOM_INPUTS = 10_000
"""More say no more, and they are all made in memory."""

REPAIR_IMAGES = 256
"""The most that a repair is fitted to. On EfficientNet-Lite0, 64 and 256 photographs gave the same."""

AVERAGED = "ema"
"""What :attr:`ModelSpec.network` says for averaged weights, which training programs keep under names that hold it."""

WITHOUT_LABELS = "none"
"""What :attr:`DataSpec.labels` says to measure without labels."""


Goal = Literal["smaller", "faster", "targets", "look"]
"""Fewer bytes, less time, a schedule for a training tool, or only the sensitivities of the layers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """Which network. ``library`` and ``name`` give the architecture, ``checkpoint`` its weights, if any.

    Attributes:
        library: one of :data:`senseapp.descriptions.SOURCES`: ``auto`` recognises the architecture from the
            checkpoint; of an ``imported`` model only figures are known, from another tool's file.
        name: in the library (``resnet50``); empty for ``auto``.
        pretrained, checkpoint: load the library's published weights; path of a weights file, if any.
        network: which of several networks in a checkpoint: what stands before the names of its weights
            (``state_dict_ema``, ``teacher``), or a part of it; empty takes the first.
        outputs: of an ONNX file, the names of the values to measure; empty takes those that fit the task.
        layout: of these outputs, as the reading of the file writes it; empty takes the one that fits.
        in_runtime: of an ONNX file, whether onnxruntime computes nodes that senseapp does not read.
        num_classes, in_chans, img_size: overrides; None keeps the architecture's own, or what the checkpoint has.
        task: one of :data:`senseapp.tasks.TASKS`; empty takes that of the source's network, and is an error for
            sources whose networks do not say it, such as ONNX files.
    """

    library: str = "demo"
    name: str = ""
    pretrained: bool = False
    checkpoint: str = ""
    network: str = ""
    outputs: tuple[str, ...] = ()
    layout: str = ""
    in_runtime: bool = False
    num_classes: int | None = None
    in_chans: int | None = None
    img_size: int | None = None
    task: str = ""

    def __post_init__(self) -> None:
        source = SOURCES.named(self.library)
        source.check(self.name)
        object.__setattr__(self, "task", self.task or source.task_of(self.name))
        if not self.task:
            raise InvalidSpec(f"{self.title} does not say what it does. Choose a task: {', '.join(TASKS)}.")
        task_named(self.task)
        if self.outputs and not source.chooses_outputs:
            raise InvalidSpec(f"Outputs are chosen in an ONNX file; {self.title} has its own. Leave them out.")
        if (self.layout or self.in_runtime) and not source.chooses_outputs:
            what = "A layout of outputs" if self.layout else "A choice to let onnxruntime compute nodes"
            raise InvalidSpec(f"{what} is of an ONNX file, and the model is {self.title}.")
        if self.layout:
            task_named(self.task).reader_of(self.layout)
        check_counts(self, "num_classes", "in_chans", "img_size")

    @property
    def is_runnable(self) -> bool:
        """Whether there is a network to run, and not only what was measured of one."""
        return SOURCES[self.library].is_runnable

    @property
    def title(self) -> str:
        """The name people see: ``timm/resnet18``, or that of the file which says what the network is."""
        if self.checkpoint and not self.name:
            return PurePath(self.checkpoint).name
        return f"{self.library}/{self.name}" if self.name else self.library


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSpec:
    """Which images, and how they are prepared when the model's own way is not wanted.

    Attributes:
        kind: the shipped digits, photographs or shapes, random inputs, a folder, a zip or tar archive, a set that
            torchvision downloads, or unknown (``imported`` figures).
        path, name: of the folder or archive; of the set that torchvision downloads, one of :data:`IMAGE_SETS`.
        labels: path inside the folder or archive of a table ``file,label``; empty means class folders or none,
            ``none`` (:data:`WITHOUT_LABELS`) measures without labels whatever the folders are called.
        mean, std: per channel, in the model's order, on the 0 to 1 scale; empty keeps the model's own.
        crop_pct: share of the shorter side kept by the centre crop; None keeps the model's own.
        fit: ``crop``, ``letterbox``, ``corner`` or ``stretch``; empty keeps the model's own.
        channel_order: of colour pictures; ``bgr`` for models trained with OpenCV or Caffe, empty for the model's own.
        upright: turn pictures as their cameras' rotation mark (EXIF orientation) says; else they are taken as stored.
        preparation: ``given`` takes the model's own where nothing above is set; ``auto`` has the images choose what
            is not set, and the model's image size and, among look-alikes, its architecture with it.
        chosen_by: sentences on how ``auto`` chose, in the settings that it chose; empty where a person gave them.
        evidence: (part of the reading, how it is known), as in :class:`~senseapp.tasks.reading.Reading`.
        class_map: pairs (folder name, class index) that a person has confirmed or the images have chosen; empty means
            proposed ones, between which the images choose.
    """

    kind: DataKind = "demo"
    path: str = ""
    name: str = ""
    labels: str = ""
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    crop_pct: float | None = None
    fit: Fit = ""
    channel_order: ChannelOrder = ""
    upright: bool = False
    preparation: Preparation = "given"
    chosen_by: tuple[str, ...] = ()
    evidence: tuple[tuple[str, Evidence], ...] = ()
    class_map: tuple[tuple[str, int], ...] = ()

    def __post_init__(self) -> None:
        check_choice("Images come from", self.kind, get_args(DataKind))
        if (self.kind in ("folder", "archive")) != bool(self.path):
            raise InvalidSpec(f"Images from {self.kind!r} {'need' if not self.path else 'take no'} path.")
        if self.kind == "torchvision" and self.name not in IMAGE_SETS:
            raise InvalidSpec(f"torchvision's small sets of images are {', '.join(IMAGE_SETS)}, got {self.name!r}.")
        if self.kind != "torchvision" and self.name:
            raise InvalidSpec(f"Images from {self.kind!r} take no name.")
        check_choice("The order of channels must be", self.channel_order, get_args(ChannelOrder))
        check_choice("The fit of pictures must be", self.fit, get_args(Fit))
        check_choice("The preparation of images must be", self.preparation, get_args(Preparation))
        if any(not math.isfinite(value) or value <= 0 for value in self.std):
            raise InvalidSpec(f"std must hold numbers above 0, got {self.std}.")
        if not all(math.isfinite(value) for value in self.mean):
            raise InvalidSpec(f"mean must hold finite numbers, got {self.mean}.")
        if self.crop_pct is not None and not 0 < self.crop_pct <= 1:
            raise InvalidSpec(f"crop_pct must lie above 0 and at most 1, got {self.crop_pct}.")

    @property
    def title(self) -> str:
        """The name people see."""
        if self.name:
            return f"{self.kind}/{self.name}"
        return upload_title(self.path.rsplit("/", 1)[-1]) or self.kind


LOOSE_PICTURES = re.compile(r"([\d,]+) (pictures?|files?)\.zip")
"""Names of archives that hold what was dropped loose."""


def upload_title(file_name: str) -> str:
    """Return what an upload is called: ``6 pictures`` where people dropped these, else the name of the file."""
    return file_name.removesuffix(".zip") if LOOSE_PICTURES.fullmatch(file_name) else file_name


_DEVICE = re.compile(r"auto|cpu|mps|cuda(:\d+)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class SensitivitySpec:
    """What to measure on each layer, and how carefully.

    Attributes:
        levels: on the scale of the compression (fractions, or bits), each measured on its own.
        metric: the one that ranks layers; every metric that the data allows is measured. None chooses top-1
            where labelled images are enough to show a drop of one point, and KL elsewhere.
        num_samples: images to measure on; None means all, less a share for proofs where there are plenty.
        batch_size: most images in one forward pass; None takes as many as fit the caches.
        layers, layer_types: shell patterns of names (``layer1.*``), and class names (``Conv2d``); empty means all.
        mode: ``exact`` measures, ``quick`` only estimates.
        precision: of the forward passes; ``auto`` takes bfloat16 where it is fast and ranks layers alike.
        adapted: measure each layer with weights that make up, in closed form, for what compression takes from it.
        until_settled: spend images only where neighbours in the ranking cannot yet be told apart.
        device: ``cpu``, ``cuda``, ``cuda:1``, ``mps``, or ``auto``, which takes a graphics card where there is one.
    """

    compression: CompressionConfig = field(default_factory=lambda: all_descriptions()[0].config())
    levels: tuple[float, ...] = (0.25, 0.5, 0.75)
    metric: str | None = None
    num_samples: int | None = None
    batch_size: int | None = None
    layers: tuple[str, ...] = ()
    layer_types: tuple[str, ...] = ()
    mode: Mode = "exact"
    precision: Precision = "fp32"
    adapted: bool = False
    until_settled: bool = False
    seed: int = 0
    device: str = "auto"

    def __post_init__(self) -> None:
        if not self.levels:
            raise InvalidSpec("Choose at least one level.")
        object.__setattr__(self, "levels", tuple(float(level) for level in self.levels))
        if len(set(self.levels)) != len(self.levels):
            raise InvalidSpec(f"Each level may be given once, got {self.levels}.")
        self.compression.check_levels(self.levels)
        if self.adapted and self.compression.description.removes_channels:
            raise InvalidSpec(
                f"Layers cannot be measured with adapted weights under {self.compression.kind}, which leaves fewer "
                "weights rather than other ones. Leave it out; whole schedules can be adapted."
            )
        check_choice("Mode must be", self.mode, get_args(Mode))
        check_choice("Precision must be", self.precision, get_args(Precision))
        if self.metric is not None:
            METRICS.named(self.metric)
        if not _DEVICE.fullmatch(self.device):
            raise InvalidSpec(f"The device must be auto, cpu, cuda, cuda:NUMBER or mps, got {self.device!r}.")
        check_counts(self, "num_samples", "batch_size")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSpec:
    """One run: the model, the images and the measurement decide its numbers.

    Attributes:
        goal: decides which files are made and which of them is recommended.
        target: where they will run: one of :data:`senseapp.descriptions.targets.TARGETS`.
    """

    model: ModelSpec = field(default_factory=ModelSpec)
    data: DataSpec = field(default_factory=DataSpec)
    sensitivity: SensitivitySpec = field(default_factory=SensitivitySpec)
    goal: Goal = "smaller"
    target: str = USUAL_TARGET

    def __post_init__(self) -> None:
        check_choice("The goal must be", self.goal, get_args(Goal))
        check_choice("The target must be", self.target, TARGETS)


def without_folders(settings: SettingsT) -> SettingsT:
    """Return settings, or a record that has some, with names of files in place of paths, which only owners may know."""
    own, changed = cast("Any", settings), {}
    for name in (each.name for each in fields(own)):
        part = getattr(own, name)
        if isinstance(part, ModelSpec | DataSpec | RunSpec):
            changed[name] = without_folders(part)
        elif name in ("checkpoint", "path"):  # of this or another system
            changed[name] = part.replace("\\", "/").rstrip("/").rpartition("/")[2]
    return cast("SettingsT", replace(own, **changed))


def with_reading(spec: RunSpec, reading: Reading) -> RunSpec:
    """Return the settings of a run that reads outputs, images and class numbers as ``reading`` does."""
    model = replace(spec.model, task=reading.task)
    if SOURCES[model.library].chooses_outputs:
        model = replace(model, outputs=reading.outputs, layout=reading.layout)
    return replace(
        spec,
        model=model,
        data=replace(
            spec.data,
            mean=reading.mean,
            std=reading.std,
            crop_pct=reading.crop_pct if reading.fit == "crop" else None,
            fit=reading.fit,
            channel_order=reading.channel_order,
            class_map=reading.class_map,
            preparation="given",
            evidence=tuple((part, "person") for part, _ in reading.evidence),
        ),
    )


register_family(CompressionConfig, lambda: {each.config.__name__: each.config for each in all_descriptions()})


def patterns_in(layers: str | Sequence[str]) -> tuple[str, ...]:
    """Return the patterns of layer names in a text, which commas part, or in a list.

    >>> patterns_in("conv1, layer1.*")
    ('conv1', 'layer1.*')
    """
    parts = layers.split(",") if isinstance(layers, str) else layers
    return tuple(part.strip() for part in parts if part.strip())


HistogramTensor = Literal["weights", "activations", "outputs"]
HistogramObjective = Literal["none", "output", "loss", "mean"]


@dataclass(frozen=True, slots=True, kw_only=True)
class HistogramSpec:
    """One histogram.

    Attributes:
        tensor: the layer's weights, the activations that it takes in, or the outputs that it returns.
        bits: 2 to 8.
        per_channel: one scale per channel rather than one for the tensor.
        fold: fold a BatchNorm that follows into the layer first, so that weights are seen as they will be deployed.
        objective: what is back-propagated: the task's score of each image (``output``), its loss with the label
            (``loss``), the mean of its outputs (``mean``), or nothing (``none``), which needs no backward pass and
            sets no sensitivities.
        num_images: most images to look at.
    """

    layer: str
    tensor: HistogramTensor = "weights"
    bits: int = 8
    per_channel: bool = False
    fold: bool = False
    objective: HistogramObjective = "output"
    num_images: int = 64

    def __post_init__(self) -> None:
        next(each.scale for each in all_descriptions() if each.sets_bits).check((self.bits,))
        check_choice("The tensor of a histogram must be", self.tensor, get_args(HistogramTensor))
        check_choice("The objective of a histogram must be", self.objective, get_args(HistogramObjective))
        if self.num_images < 1:
            raise InvalidSpec(f"A histogram looks at 1 image or more, got {self.num_images}.")
