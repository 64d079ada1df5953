"""A private copy of a model, laid out for fast repeated passes over one image set."""

from __future__ import annotations

import copy
import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from senseapp.core.errors import InvalidDataset, InvalidSpec, is_about_memory
from senseapp.core.process import give_back_freed_memory
from senseapp.data.images import ImageSet
from senseapp.measure.plan import Layout, lay_out, memory_bytes, micro_batches, precision_context
from senseapp.measure.replay import Prefix, Replay, find_replay_obstacle, prefix_bytes_per_image
from senseapp.metrics.predictions import Gathered, Predictions, joined, stored
from senseapp.networks.network import Abilities, abilities_of, images_per_pass
from senseapp.networks.profile import CONVOLUTIONS, others_note, profile_model, watched_pass
from senseapp.networks.trace import CallTrace, trace_calls
from senseapp.records.profile import ModelProfile
from senseapp.tasks import Task


def to_device(batch: Tensor, device: torch.device) -> Tensor:
    """Return ``batch`` on ``device``.

    CUDA copies asynchronously only from page-locked memory, while this thread prepares the next batch; kernels that
    read the batch wait for the copy. torch keeps the page-locked memory until the copy is complete.
    """
    if device.type != "cuda" or batch.device.type != "cpu":
        return batch.to(device)
    return batch.pin_memory().to(device, non_blocking=True)


PREDICTION_BYTES = 448 * 2**20
"""Most bytes of the uncompressed model's predictions, over all images of a run."""
# Of dense networks, whose references may take PREDICTION_BYTES: more images together than take about a second save
# little, as a layer is compressed once for them; a pass over one large image fills the caches.
_DENSE_ACTIVATION_BYTES = 64 * 2**20
_DENSE_MACS = 2e10  # about a second of two cores


def prediction_bytes(num_images: int) -> int:
    """Return the most that the predictions of each of ``num_images`` may take."""
    return max(2**16, PREDICTION_BYTES // max(1, num_images))  # of one image


_PartT = TypeVar("_PartT")


def choose_device(name: str) -> torch.device:
    """Return the device called ``name``; ``auto`` selects CUDA, then MPS, then the CPU.

    Raises InvalidSpec if this machine has no such device.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise InvalidSpec(f"There is no device {name!r} on this machine. Choose cpu, or auto.") from error
    return device


class ArrangedImages(Sequence[Tensor]):
    """Images of a set as micro-batches on the device, each computed when it is read: as float32 they take much memory.

    ``spans`` are the images of each batch.
    """

    def __init__(self, context: MeasurementContext, images: ImageSet, spans: Sequence[tuple[int, int]]) -> None:
        self._context, self._images, self._spans = context, images, tuple(spans)

    def __len__(self) -> int:
        return len(self._spans)

    def __getitem__(self, chosen: Any) -> Any:
        """Return one batch, (N, C, H, W), or a list of some."""
        if isinstance(chosen, slice):
            return [self[place] for place in range(len(self))[chosen]]
        return self._context.arrange(self._images.batch(*self._spans[chosen]))


@dataclass(slots=True, weakref_slot=True)
class MeasurementContext:
    """A :class:`~senseapp.networks.network.Network`: a model copy and the images, ready for whole passes and replay.

    ``trace`` records a pass in ``layout``; ``channels_last`` says whether the model convolves and accepts images in
    that memory order; ``replay_obstacle`` is why it cannot be replayed; ``seconds_per_image`` is the time of one whole
    pass; ``prediction_bytes`` is the limit for the predictions of one image.
    """

    model: nn.Module
    images: ImageSet
    device: torch.device
    layout: Layout
    trace: CallTrace
    profile: ModelProfile
    task: Task
    channels_last: bool = False
    replay_obstacle: str | None = None
    seconds_per_image: float = 0.0
    prediction_bytes: int = PREDICTION_BYTES

    @classmethod
    def prepare(
        cls, model: nn.Module, images: ImageSet, *, device: str = "cpu", own: bool = False, task: Task
    ) -> MeasurementContext:
        """Copy ``model``, or use it as it is with ``own``, and trace one pass.

        Raises:
            InvalidDataset: there is no image, or there are fewer than one pass of the model computes.
            UnsupportedModel: the model fails on the images or returns no output of ``task``.
        """
        if len(images) == 0:
            raise InvalidDataset("There are no images to measure on. Bring at least one.")
        place = choose_device(device)
        private = (model if own else copy.deepcopy(model)).eval().requires_grad_(False).to(place)
        few = images_per_pass(private) or 1
        if len(images) < few:
            raise InvalidDataset(
                f"The model is fixed to {few} images at a time, and there are {len(images)} to measure on. Bring at "
                "least as many, or export the model for any number of images."
            )
        sample = images.batch(0, few).to(place)
        trace = _watched_in_channels_last(private, sample)
        layout = Layout(channels_last=trace is not None)
        if trace is None:
            trace = watched_pass(lay_out(private, layout), sample)
        return cls(
            model=private,
            images=images,
            device=place,
            layout=layout,
            trace=trace,
            profile=profile_model(private, sample, trace=trace, task=task),
            task=task,
            channels_last=layout.channels_last,
            prediction_bytes=prediction_bytes(len(images)),
        )

    @property
    def abilities(self) -> Abilities:
        """What else can be done with it: all, but for what its nodes lack."""
        return abilities_of(self.model)

    @property
    def fixed_batch(self) -> None:
        """Any number of images."""
        return

    def run(self, batch: Tensor) -> object:
        """Return the model's raw output for images (N, C, H, W), in this layout and precision."""
        with torch.inference_mode(), precision_context(self.layout.precision, self.device):
            return self.model(self.arrange(batch))

    def bytes_per_image(self, positions: Sequence[int]) -> int:
        """Return the most bytes that one image and its outputs take that are kept to continue at ``positions``."""
        input_bytes: int = 4 * self.images.batch(0, 1)[0].numel()
        return prefix_bytes_per_image(self.trace, list(positions)) + input_bytes

    def activation_bytes(self, positions: Sequence[int]) -> int:
        """Return the most bytes of images and kept outputs that are measured together."""
        # Of the images measured together; an eighth of the memory where that is less.
        most = min(2 * 2**30, memory_bytes(self.device) // 8)
        if not self._is_dense:
            return most
        enough = math.ceil(_DENSE_MACS * self.trace.batch_size / max(1, self.trace.macs))
        return min(most, max(_DENSE_ACTIVATION_BYTES, enough * self.bytes_per_image(positions)))

    def most_in_pass(self, most: int) -> int:
        """Return at most how many of ``most`` images one pass takes."""
        if not self._is_dense:
            return most
        largest = max((call.output_bytes for call in self.trace.calls), default=1) // self.trace.batch_size
        return max(1, min(most, 32 * 2**20 // max(1, largest)))  # bytes of the largest output of a pass

    def give_back_memory(self) -> None:
        """Return freed memory to the system where references take much: it lies between objects that are kept."""
        if self._is_dense:
            give_back_freed_memory()

    @property
    def _is_dense(self) -> bool:
        """Whether it answers for pixels or boxes, on a processor: references alone then take much of the memory."""
        return self.device.type == "cpu" and not self.task.one_tensor

    @property
    def _sample(self) -> Tensor:
        """The images of one short pass: one, or as many as each pass of the model computes."""
        return self.images.batch(0, images_per_pass(self.model) or 1)

    def take(self, layout: Layout) -> None:
        """Run passes in ``layout`` from now on, and trace one if memory order or precision changed."""
        watched, self.layout = self.layout, layout
        lay_out(self.model, layout)
        if (watched.channels_last, watched.precision) == (layout.channels_last, layout.precision):
            return
        further = self.trace.used_by_others
        with precision_context(layout.precision, self.device):
            self.trace = trace_calls(self.model, self.arrange(self._sample))
        self.trace.add_uses(further)

    def check_replay(self, span: tuple[int, int], positions: Sequence[int], plain: Predictions) -> None:
        """Check that a replay reproduces ``plain`` for the images of ``span``; sets :attr:`replay_obstacle`.

        It costs about one pass over them. Out-of-memory errors are raised.
        """
        if self.replay_obstacle:
            return
        start, stop = span
        parts = [plain[low - start : high - start] for low, high in micro_batches(start, stop, self.layout.micro_batch)]
        with precision_context(self.layout.precision, self.device):
            self.replay_obstacle = find_replay_obstacle(
                self.model, self.trace, self.batches(*span), positions, parts, lambda raw: stored(self.read(raw))
            )

    def look_at_all_images(self) -> dict[str, int]:
        """Find weights that other images use and the first one does not; fast where the first uses all.

        Returns:
            Multiply-accumulates by parameter name, for :meth:`admit`.
        """
        if all(layer.runs for layer in self.profile.layers):
            return {}
        macs = Counter[str]()
        try:
            with precision_context(self.layout.precision, self.device):
                for batch in self.arranged_when_read(self.images, 0, len(self.images)):
                    macs.update({name: use.macs for name, use in trace_calls(self.model, batch).uses.items()})
        except Exception as error:  # other images than the first may need the other memory order
            if not self.layout.channels_last or is_about_memory(error):
                raise
            self.take(replace(self.layout, channels_last=False))
            return self.look_at_all_images()
        return {name: macs[name] // len(self.images) for name in macs if name not in self.trace.uses}

    def admit(self, further: Mapping[str, int]) -> str:
        """Add weights that only other images use to profile and trace; return a sentence on them, or an empty one."""
        if not further:
            return ""
        self.trace.add_uses(further)
        self.profile = profile_model(self.model, self._sample.to(self.device), trace=self.trace, task=self.task)
        return others_note(self.profile.layers, self.trace)

    def batches(self, start: int, stop: int) -> list[Tensor]:
        """Return images ``start`` to ``stop`` as micro-batches on the device."""
        return self.arranged(self.images, start, stop)

    def arranged(self, images: ImageSet, start: int, stop: int) -> list[Tensor]:
        """Return images ``start`` to ``stop`` of any set as micro-batches on the device, in this layout."""
        return list(self.arranged_when_read(images, start, stop))

    def arranged_when_read(self, images: ImageSet, start: int, stop: int) -> ArrangedImages:
        """Return :meth:`arranged` without its memory: each batch is computed when it is read."""
        return ArrangedImages(self, images, list(micro_batches(start, stop, self.layout.micro_batch)))

    def prefixes(self, start: int, stop: int) -> list[Prefix]:
        """Return an empty prefix for each micro-batch of images ``start`` to ``stop``."""
        return [Prefix(self.trace, batch) for batch in self.batches(start, stop)]

    def read(self, raw: Any) -> Predictions:
        """Return the task's predictions from the model's raw output for some images."""
        return self.task.predictions(raw, most_bytes=self.prediction_bytes)

    def outputs(self, start: int, stop: int) -> Predictions:
        """Return the predictions of images ``start`` to ``stop`` by whole passes, float32 on the CPU."""
        return self._gather(self.model, self.batches(start, stop))

    def baseline(self, start: int = 0) -> Predictions:
        """Return the predictions of all images from ``start`` on, and time the passes."""
        started, num_images = time.perf_counter(), len(self.images) - start
        gathered = Gathered(num_images)
        for low, high in micro_batches(start, len(self.images), self.layout.micro_batch):
            gathered.add(self.outputs(low, high))
        self.seconds_per_image = (time.perf_counter() - started) / num_images
        return gathered.predictions

    def advance(self, replay: Replay, prefixes: Sequence[Prefix], position: int) -> None:
        """Move every prefix to ``position``; the model must be unchanged."""
        if all(prefix.position >= position for prefix in prefixes):
            return
        with replay.installed(), torch.inference_mode(), precision_context(self.layout.precision, self.device):
            for prefix in prefixes:
                replay.advance(prefix, position)

    def resume(self, replay: Replay, prefixes: Sequence[Prefix]) -> Predictions:
        """Return the predictions of the prefixes' images, computed from their position on, float32 on the CPU."""
        with replay.installed():
            return self._gather(replay.resume, prefixes)

    def _gather(self, run: Callable[[_PartT], Any], parts: Sequence[_PartT]) -> Predictions:
        outputs = []
        for part in parts:
            with torch.inference_mode(), precision_context(self.layout.precision, self.device):
                output = self.read(run(part))
            outputs.append(stored(output))  # outside inference mode, so that later code may use the result freely
        return joined(outputs)

    def arrange(self, batch: Tensor) -> Tensor:
        """Return images (N, C, H, W) on the device in this layout, as a copy if the model writes into them."""
        batch = to_device(batch, self.device)
        if self.trace.input_overwritten:  # the model writes into its input
            batch = batch.clone()
        return batch.contiguous(memory_format=torch.channels_last) if self.layout.channels_last else batch


def _watched_in_channels_last(model: nn.Module, sample: Tensor) -> CallTrace | None:
    """Trace a pass in channels-last, and leave the model so; None without 4-D convolutions, or where it fails."""
    if not any(isinstance(module, CONVOLUTIONS) and module.weight.dim() == 4 for module in model.modules()):
        return None
    lay_out(model, Layout(channels_last=True))
    try:
        return trace_calls(model, sample.contiguous(memory_format=torch.channels_last))
    except Exception:  # a model that fails in both orders reports why in the other one
        return None
