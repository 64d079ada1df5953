"""A check of calibration images: how many are enough, whether they cover other images, whether they are normalised."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from senseapp.core.texts import plural
from senseapp.data.images import ImageSet
from senseapp.metrics import METRICS, divergence_among
from senseapp.networks.loaded import IMAGENET_MEAN, IMAGENET_STD
from senseapp.networks.network import Network, in_calls
from senseapp.prove.evaluator import ScheduleEvaluator
from senseapp.prove.judge import Judge, JudgingImages
from senseapp.records.calibration import CalibrationCheck, CalibrationRung, TensorCoverage
from senseapp.runtimes.base import Runtime, RuntimeNetwork
from senseapp.tasks import Task

_FIRST, _MOST = 8, 256  # calibration images of the first rung, and of the last
_DRAWS = 4  # of each rung but the last
_JUDGED = 128  # held-out images, at most
_SHOWN = 8  # tensors that are not covered
_OTHER_SCALE = 8.0  # times the standard deviation: the same pictures, prepared otherwise
_NORMALISED: dict[str, tuple[tuple[float, float, float], tuple[float, float, float]]] = {
    "less .5, divided by .5": ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
    "normalised as ImageNet's are": (IMAGENET_MEAN, IMAGENET_STD),
}
_SURER = 0.15  # of a probability: what other preparation must gain on average before it is spoken of
_ASKED = 16  # images whose answers tell


def check_calibration(evaluator: ScheduleEvaluator, runtime: Runtime) -> CalibrationCheck:
    """Return what files calibrated on draws of 8, 16, 32 … images of the curves do on held-out images.

    All files are in int8 as a whole, with ranges from the least and largest values. At most 256 calibration images,
    four draws of each number and 128 held-out images are used, so it takes at most 21 files.
    """
    content = evaluator.original_file(runtime)
    network = runtime.open(content)
    proof = evaluator.images.proof
    held_out = _batches(evaluator, proof.subset(range(min(len(proof), _JUDGED))), network)
    judge = _judge(evaluator, held_out, network)
    pool, metric = _pool(evaluator), _shown(judge)
    rungs = list[CalibrationRung]()
    counts = _counts(len(pool))
    int8 = b""
    for count in counts:
        values = []
        for draw, chosen in enumerate(_draws(pool, count)):
            evaluator.progress(f"Calibrating on {plural(count, 'image')} · draw {draw + 1}")
            calibration = _batches(evaluator, evaluator.images.curves.subset(chosen), network)
            with runtime.quantizer(content, calibration) as quantizer:
                int8 = quantizer.write()
            values.append(judge.judged(runtime.open(int8)).change(metric).value)
        rungs.append(CalibrationRung(images=count, values=tuple(values)))
    everything = _batches(evaluator, evaluator.images.curves.subset(pool), network)
    found = CalibrationCheck(
        metric=metric,
        rungs=tuple(rungs),
        images=sum(map(len, held_out)),
        notes=(
            *(() if evaluator.images.held_out else (evaluator.images.note,)),
            *_preparation_notes(evaluator.task, network, everything, held_out),
        ),
    )
    evaluator.progress("Comparing activations with their ranges")
    return _with_coverage(found, evaluator, runtime, content, int8, everything, held_out)


def _with_coverage(
    found: CalibrationCheck,
    evaluator: ScheduleEvaluator,
    runtime: Runtime,
    content: bytes,
    int8: bytes,
    calibration: Sequence[Tensor],
    held_out: Sequence[Tensor],
) -> CalibrationCheck:
    covered = runtime.coverage(content, int8, calibration, held_out)
    if not covered:
        return found
    middle = (len(calibration) + 1) // 2
    halves = calibration[:middle], calibration[middle:]
    own = runtime.coverage(content, int8, *halves) if all(halves) else []
    layers = runtime.layers_of_nodes(content, {layer.name for layer in evaluator.profile.layers})
    by_chance = {each.node: each.beyond for each in own}
    missed = (each for each in covered if not each.is_covered(by_chance.get(each.node, 0.0)))
    uncovered = sorted(missed, key=lambda each: -each.beyond)
    return replace(
        found,
        tensors=len(covered),
        num_uncovered=len(uncovered),
        uncovered=tuple(replace(each, layer=layers.get(each.node, "")) for each in uncovered[:_SHOWN]),
        beyond=_mean(covered),
        own_beyond=_mean(own),
    )


def _mean(covered: Sequence[TensorCoverage]) -> float:
    return statistics.fmean(each.beyond for each in covered) if covered else 0.0


def _counts(most: int) -> list[int]:
    """Return the numbers of images of the rungs: powers of two, and all."""
    counts, count = list[int](), _FIRST
    while count < most:
        counts.append(count)
        count *= 2
    return [*counts, most]


def _pool(evaluator: ScheduleEvaluator) -> list[int]:
    """Return the positions of the curves' images that files are calibrated on, in an order by chance."""
    generator = torch.Generator().manual_seed(evaluator.result.spec.sensitivity.seed)
    order: list[int] = torch.randperm(len(evaluator.images.curves), generator=generator).tolist()
    return order[:_MOST]


def _draws(pool: Sequence[int], count: int) -> Iterator[list[int]]:
    """Yield draws of ``count`` images: disjoint ones where there are enough; one of all."""
    for draw in range(_DRAWS if count < len(pool) else 1):
        if (draw + 1) * count <= len(pool):
            yield list(pool[draw * count : (draw + 1) * count])
        else:
            order = torch.randperm(len(pool), generator=torch.Generator().manual_seed(draw))[:count]
            yield [pool[int(place)] for place in order]


def _batches(evaluator: ScheduleEvaluator, images: ImageSet, network: RuntimeNetwork) -> list[Tensor]:
    batches = evaluator.dense.arranged(images, 0, len(images))
    return [part.cpu() for batch in batches for part in in_calls(network, batch)]


def _judge(evaluator: ScheduleEvaluator, batches: Sequence[Tensor], network: RuntimeNetwork) -> Judge:
    images = JudgingImages.of_batches(batches)
    return Judge(evaluator.task, images, network, num_outputs=evaluator.profile.num_classes)


def _shown(judge: Judge) -> str:
    """Return the share that people understand, where the task has one, else the divergence."""
    shares = (name for name in judge.metrics if METRICS[name].is_share)
    return next(shares, None) or divergence_among(judge.metrics) or judge.metrics[0]


def _preparation_notes(
    task: Task, network: Network, calibration: Sequence[Tensor], held_out: Sequence[Tensor]
) -> Iterator[str]:
    """Yield a sentence where images look as if they were not normalised as the network, or the others, need it."""
    own, others = (torch.cat(tuple(each)) for each in (calibration, held_out))
    spreads = float(own.std()), float(others.std())
    if max(spreads) > _OTHER_SCALE * min(spreads):
        larger = "calibration images" if spreads[0] > spreads[1] else "images that judge"
        yield (
            f"The {larger} look like raw pixels: values of the calibration images are {_ends(own)}, of those that "
            f"judge {_ends(others)}. Prepare both alike."
        )
    elif float(own.min()) >= 0 and own.shape[1] == 3:
        yield from _surer(task, network, own[:_ASKED])


def _surer(task: Task, network: Network, images: Tensor) -> Iterator[str]:
    """Yield what the network is surer with, of images that are all at least 0, so perhaps never normalised."""
    as_it_is = _sureness(task, network, images)
    if as_it_is is None:
        return
    divisor = 255.0 if float(images.max()) > 2 else 1.0
    tried = dict[str, float]()
    for words, ends in _NORMALISED.items():
        mean, std = (torch.tensor(each).view(3, 1, 1) for each in ends)
        tried[words] = _sureness(task, network, (images / divisor - mean) / std) or 0.0
    words = max(tried, key=tried.__getitem__)
    if tried[words] > as_it_is + _SURER:
        divided = f"divided by {divisor:g} and " if divisor > 1 else ""
        yield (
            f"Images reach the network as values {_ends(images)}, perhaps raw pixels: {divided}{words}, it is surer of "
            f"its answers ({tried[words]:.2f} instead of {as_it_is:.2f}, the mean probability of the likeliest). Check "
            "the preprocessing of the run."
        )


def _sureness(task: Task, network: Network, images: Tensor) -> float | None:
    """Return the mean probability of the likeliest answer; None for tasks without answers."""
    shares = [task.answer_shares(task.predictions(network.run(part))) for part in in_calls(network, images)]
    known = [each for each in shares if each is not None]
    return float(torch.cat(known).mean()) if known else None


def _ends(images: Tensor) -> str:
    return f"{float(images.min()):.3g} to {float(images.max()):.3g}"
