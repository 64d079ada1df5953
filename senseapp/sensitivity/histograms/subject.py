"""The network and the images of a run, for a histogram and for the next one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from torch import nn

from senseapp.data import ImageSet, load_images
from senseapp.leftovers import LEFTOVERS
from senseapp.models.load import load_model
from senseapp.results import SensitivityResult
from senseapp.sensitivity.layout import Layout, lay_out
from senseapp.spec.histogram import HistogramSpec
from senseapp.tasks import task_named


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What a histogram is taken of.

    Attributes:
        module: in ``eval()`` mode.
        images: those that are looked at.
    """

    module: nn.Module
    images: ImageSet


@contextmanager
def subject_of(
    result: SensitivityResult,
    spec: HistogramSpec,
    *,
    data_roots: tuple[Path, ...],
    progress: Callable[[str], None],
) -> Iterator[Subject]:
    """Lend what the histogram of ``spec`` looks at; where the one before looked at the same, nothing is loaded.

    Raises:
        InvalidInput: the model or the images cannot be used.
    """
    key = result.spec.model, result.spec.data, spec.num_images, result.num_samples, result.spec.sensitivity.seed
    subject = LEFTOVERS.take((key, data_roots)) or _load(result, spec, data_roots, progress)
    yield subject
    if not spec.fold:  # which leaves another network
        LEFTOVERS.leave((key, data_roots), subject)


def _load(
    result: SensitivityResult, spec: HistogramSpec, data_roots: tuple[Path, ...], progress: Callable[[str], None]
) -> Subject:
    progress("Loading the model")
    loaded = load_model(result.spec.model, progress=progress)
    progress("Loading the images")
    images = load_images(
        result.spec.data,
        loaded.preprocessing,
        num_classes=loaded.num_classes,
        task=task_named(result.spec.model.task),
        num_samples=min(spec.num_images, result.num_samples),
        seed=result.spec.sensitivity.seed,
        data_roots=data_roots,
        class_names=loaded.class_names,
        with_labels=not loaded.fresh_head,
    )
    module = lay_out(loaded.module, Layout(channels_last=True))  # a fifth less time on ResNet-50
    return Subject(module=module, images=images)
