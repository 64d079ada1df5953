"""A check's condition for a simulated processor: the loss there, on as many images as a time allows."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import cast

import torch

from senseapp.core.errors import InvalidSpec
from senseapp.core.steps import Progress
from senseapp.descriptions.processors import PROCESSORS, simulator_of
from senseapp.metrics import METRICS
from senseapp.prove.check.alignment import PreparedReference
from senseapp.prove.check.limits import loss_bound, loss_limit
from senseapp.prove.check.sides import OpenSide
from senseapp.prove.judge import Judge, JudgingImages
from senseapp.records.check import CheckedLimit, CheckSpec
from senseapp.runtimes.open_file import OpenFile


def loss_on_processor(
    spec: CheckSpec,
    prepared: PreparedReference,
    candidate: OpenSide,
    metric: str,
    allowed: float,
    *,
    context: Path | None,
    progress: Progress,
) -> CheckedLimit:
    """Return whether the file loses at most ``allowed`` on the processor of ``spec``, beside its loss on this computer.

    The compiled file is put at ``context``, if that is given.

    Raises:
        InvalidSpec: the file is no ONNX file, or the simulator cannot run it.
    """
    label = PROCESSORS.named(spec.processor).label
    simulator = cast(Callable[..., OpenFile], simulator_of(spec.processor))
    if candidate.content is None or not candidate.is_onnx or candidate.file is None:
        raise InvalidSpec(f"{candidate.name} cannot run on {label}: an ONNX file is wanted there, in int8 (QDQ).")
    progress(f"Compiling for {label}: its simulator is slow, and takes up to {spec.processor_seconds:.0f} s in all")
    began = time.monotonic()
    file = simulator(candidate.content, context=context)
    file.choose(candidate.file.output_names)
    there = replace(candidate, file=file)
    size = file.fixed_batch or 1
    order = torch.randperm(len(prepared.images), generator=torch.Generator().manual_seed(spec.seed)).tolist()
    images = prepared.images.subset(order)
    there.run(images.batch(0, size))  # the first call takes longer
    called = time.monotonic()
    there.run(images.batch(0, size))
    left = spec.processor_seconds - (time.monotonic() - began)
    count = size * max(1, min(len(order) // size, int(left / (time.monotonic() - called))))
    images = images.subset(range(count))
    progress(f"Running the compressed file on {label}")
    judge = Judge(
        prepared.task,
        JudgingImages.of_images(images, size),
        prepared.reference,
        num_outputs=prepared.num_outputs,
        progress=progress,
    )
    if metric not in judge.metrics:
        raise InvalidSpec(f"The metric {metric} cannot be measured on {count} images. Allow more time.")
    limit = loss_limit(loss_bound(judge.judged(there), metric, allowed))
    here = METRICS[metric].change_text(judge.judged(candidate).change(metric).delta)
    said = f"On {label}, simulated: {limit.sentence} On this computer, the same images: {here}. {file.about}".strip()
    return replace(limit, name="processor", sentence=said)
