"""Networks from a :class:`ModelSpec`, ready for measurement."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from senseapp.compat.torch_internals import restored
from senseapp.core.errors import InvalidSpec, UnknownModel, UnsupportedModel, is_about_memory
from senseapp.core.process import PROCESS_CACHE
from senseapp.descriptions import SOURCES
from senseapp.networks.checkpoints.checkpoint import read_checkpoint
from senseapp.networks.checkpoints.fitting import load_from_checkpoint, load_tensors
from senseapp.networks.loaded import LoadedModel
from senseapp.networks.sources.libraries import build_timm
from senseapp.networks.sources.torchvision_networks import build_torchvision
from senseapp.records.spec import ModelSpec
from senseapp.tasks import task_named

RANDOM_WEIGHTS_NOTE = "Random weights: figures are indicative only."

_BUILDERS: dict[str, Callable[[ModelSpec], LoadedModel]] = {"timm": build_timm, "torchvision": build_torchvision}


def load_model(spec: ModelSpec, *, progress: Callable[[str], None] | None = None) -> LoadedModel:
    """Return the network of ``spec`` in ``eval()`` mode, float32, on the CPU, without gradients.

    Args:
        spec: the architecture and its weights. Without ``pretrained`` and without ``checkpoint`` the weights are random
            but seeded: the same spec gives the same weights. With a checkpoint, classes, channels and image size are
            read off its shapes, and library ``auto`` recognises the architecture.
        progress: receives one short sentence before each long step.

    Raises:
        UnknownModel: no architecture of that name (the message names the three closest), or an imported table.
        InvalidSpec: the architecture does not take these classes, channels or image size.
        InvalidCheckpoint: published weights could not be fetched, or the checkpoint could not be read or matched.
        UnsupportedModel: the architecture has no classifier.
    """
    report = progress or (lambda _: None)
    PROCESS_CACHE.drop()  # never two networks in memory
    source = SOURCES.named(spec.library)
    if not source.is_runnable:
        raise UnknownModel(
            f"{spec.name} was imported as a table of figures, so there is no network to run. "
            "Analyze the model itself for this."
        )
    loaded: LoadedModel = source.load()(spec, report)
    head_note = task_named(spec.task).head_note(loaded.num_classes)
    return dataclasses.replace(loaded, notes=(*loaded.notes, head_note)) if head_note else loaded


def load_architecture(spec: ModelSpec, report: Callable[[str], None]) -> LoadedModel:
    """Return a network of timm or torchvision, with published, random or a checkpoint's weights."""
    if spec.checkpoint:
        return load_from_checkpoint(spec, build_network, report)
    if spec.library not in _BUILDERS:
        raise InvalidSpec("An architecture is recognised from a checkpoint: give one, or choose a model by name.")
    report(f"{'Fetching the weights of' if spec.pretrained else 'Building'} {spec.title}")
    loaded = build_network(spec)
    if spec.pretrained:
        return loaded
    return dataclasses.replace(loaded, class_names=(), notes=(*loaded.notes, RANDOM_WEIGHTS_NOTE))


def load_demo(spec: ModelSpec, report: Callable[[str], None]) -> LoadedModel:
    """Return a network that ships with senseapp, with the weights of a checkpoint where one is given.

    Raises:
        InvalidCheckpoint: the checkpoint does not hold weights of this network.
        InvalidSpec: other sizes are wanted.
    """
    from senseapp.networks.sources.demo import DETECTOR, load_demo_model, load_detector, load_efficientnet

    if dataclasses.replace(spec, pretrained=False, checkpoint="") != ModelSpec(library=spec.library, name=spec.name):
        raise InvalidSpec(
            "The demo brings its own weights, classes and image size. "
            "Choose a timm or torchvision architecture for others."
        )
    report("Loading the demo")
    loaded = {"": load_demo_model, DETECTOR: load_detector}.get(spec.name, load_efficientnet)()
    if not spec.checkpoint:
        return loaded
    checkpoint = read_checkpoint(spec.checkpoint)
    load_tensors(loaded.module, checkpoint.tensors, file_name=checkpoint.file_name, title=loaded.title)
    return dataclasses.replace(loaded, notes=(*loaded.notes, *checkpoint.notes))


def build_network(spec: ModelSpec, arguments: Mapping[str, Any] | None = None) -> LoadedModel:
    """Build the architecture with published or random weights; errors as of :func:`load_model`.

    ``arguments`` are others of timm, from a ``config.json``.
    """
    loaded = build_timm(spec, arguments) if arguments else _BUILDERS[spec.library](spec)
    if loaded.num_classes < 1:
        raise UnsupportedModel(
            f"{spec.title} has no classifier of its own: it returns features, not class scores. "
            "Give a number of classes (its head will be random), or choose another architecture."
        )
    loaded.module.float().eval().requires_grad_(False)
    if spec.img_size is not None or spec.in_chans is not None:
        check_forward(loaded.module, loaded.preprocessing.input_shape, title=spec.title)
    return loaded


def check_forward(module: nn.Module, input_shape: tuple[int, int, int], *, title: str) -> None:
    """Run one pass of ``module``, which is in ``eval()`` mode, on an empty image.

    A pass of shapes alone, on torch's ``meta`` device, loads torch's compiler: 1.5 s and 150 MB.

    Raises InvalidSpec if an operation rejects the shapes for images of ``input_shape`` (C, H, W).
    """
    try:
        with torch.inference_mode(), restored(module.modules()):
            module(torch.zeros(1, *input_shape))
    except (RuntimeError, ValueError, AssertionError, IndexError, TypeError) as error:
        if is_about_memory(error):
            raise
        channels, height, width = input_shape
        raise InvalidSpec(
            f"{title} does not take images of {height} × {width} pixels with {channels} channels. "
            "Leave the image size and the channels empty for the architecture's own."
        ) from error
