"""The conditions of a check: the bound of the loss below its limit, here or on a simulated processor, time, numbers."""

import math
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import cast

import torch

from senseapp.core.errors import InvalidSpec
from senseapp.core.steps import Progress
from senseapp.core.texts import plural
from senseapp.descriptions.runtimes import PROCESSORS
from senseapp.metrics import METRICS
from senseapp.metrics.bounds import images_needed
from senseapp.metrics.classification import AGREEMENT, TopAccuracy
from senseapp.metrics.records import RecordMetric
from senseapp.prove.check.alignment import PreparedReference
from senseapp.prove.check.sides import OpenSide
from senseapp.prove.judge import Judge, Judgement, JudgingImages
from senseapp.records.check import CheckedLimit, CheckSpec, LossBound
from senseapp.records.deployment import Median
from senseapp.records.promise import CONFIDENCE, rounded_up
from senseapp.runtimes.open_file import OpenFile

_OF_RUN = " That is of this file alone; Results bounds all files of the run together, so there it may be more."


def comparable(images: int, not_finite: int) -> CheckedLimit:
    """Return that both files answer the same images, unless some answers of the candidate are no numbers."""
    count = plural(images, "image")
    said = f"Both files answer the same {count} in the same form."
    if not_finite:
        said = f"The compressed file returns numbers that are not finite (NaN or infinite) on {not_finite} of {count}."
    return CheckedLimit(name="comparable", holds=not not_finite, sentence=said)


def loss_bound(judged: Judgement, name: str, allowed: float) -> LossBound:
    """Return the loss in the metric ``name`` with its one-sided upper bound.

    Shares of answers have an exact bound for any number of images; means in a known range one that holds for any
    number too; metrics of all images together one that simulations support; metrics without a range the end of their
    interval. See :meth:`~senseapp.metrics.base.Metric.upper_bound`.
    """
    metric, change = METRICS[name], judged.change(name)
    images, moments = change.num_samples, change.moments
    upper, needed = metric.upper_bound(moments, CONFIDENCE), None
    is_guaranteed = metric.is_share and not isinstance(metric, RecordMetric)
    if metric is AGREEMENT or isinstance(metric, TopAccuracy):
        how = "exact binomial" if metric is AGREEMENT else "exact for paired answers"
        if allowed and moments[2] == moments[3]:  # no answer became right
            needed = images_needed(allowed, CONFIDENCE, rate=moments[2] / images)
    elif isinstance(metric, RecordMetric):
        how = "bootstrap over these images and one on which all is lost"
    elif math.isfinite(metric.least_loss) and math.isfinite(metric.most_loss):
        how = "betting"
    else:
        how, is_guaranteed = "upper end of the interval, for many images", False
    return LossBound(
        metric=name,
        delta=change.delta,
        upper=max(upper, change.delta) if not math.isnan(change.delta) else math.inf,
        allowed=allowed,
        how=how,
        guaranteed=is_guaranteed,
        images=images,
        images_needed=needed if needed is None or needed > images else None,
    )


def loss_limit(bound: LossBound, *, own_images: int = 0, is_of_run: bool = False) -> CheckedLimit:
    """Return whether the loss is at most what is allowed, with the confidence of its bound.

    ``own_images`` are those among the images that the run of the file used, on which it may lose less than on new ones.
    ``is_of_run`` says that Results shows a bound of the same file.
    """
    metric = METRICS[bound.metric]
    lost, upper = metric.change_text(bound.delta), rounded_up(metric, bound.upper)
    allowed, images = metric.limit_text(bound.allowed), plural(bound.images, "image")
    said = f"{metric.change_title}: {lost} on {images}, with {100 * bound.confidence:.0f} % certainty at most {upper}"
    own = min(own_images, bound.images)
    with_own = f" The run of this file used {own:,} of these {images}, so it may lose more on new ones." if own else ""
    holds = bound.upper <= bound.allowed
    undecided = not holds and bound.delta <= bound.allowed
    if not undecided:
        said += f"; the limit is {allowed}."
    else:
        said += f": these images are too few to show that it is at most {allowed}."
        if bound.images_needed is not None:
            said += f" About {bound.images_needed:,} images with as few changes would show it."
    return CheckedLimit(name="loss", holds=holds, undecided=undecided, sentence=said + with_own + is_of_run * _OF_RUN)


def time_limit(ratio: Median, allowed: float) -> CheckedLimit:
    """Return whether the candidate takes at most ``allowed`` times as long, by the interval of the median ratio."""
    undecided = ratio.low <= allowed < ratio.high
    close = f": that is too close to the allowed {allowed:g} to tell on this machine."
    said = f"It takes {ratio.times_text} of the original{close if undecided else f'; the limit is {allowed:g}.'}"
    return CheckedLimit(name="time", holds=ratio.high <= allowed, undecided=undecided, sentence=said)


def loss_on_processor(
    spec: CheckSpec,
    prepared: PreparedReference,
    candidate: OpenSide,
    bound: LossBound,
    *,
    context: Path | None,
    progress: Progress,
) -> CheckedLimit:
    """Return whether the file loses at most what ``bound`` allows on the processor of ``spec``, beside its loss here.

    The compiled file is put at ``context``, if that is given.

    Raises InvalidSpec if the file is no ONNX file, or the simulator cannot run it.
    """
    processor = PROCESSORS.named(spec.processor)
    label, simulator = processor.label, cast(Callable[..., OpenFile], processor.load())
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
    if bound.metric not in judge.metrics:
        raise InvalidSpec(f"The metric {bound.metric} cannot be measured on {count} images. Allow more time.")
    limit = loss_limit(loss_bound(judge.judged(there), bound.metric, bound.allowed))
    here = METRICS[bound.metric].change_text(judge.judged(candidate).change(bound.metric).delta)
    said = f"On {label}, simulated: {limit.sentence} On this computer, the same images: {here}. {file.about}".strip()
    return replace(limit, name="processor", sentence=said)
