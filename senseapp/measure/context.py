"""A private copy of a model, laid out for fast repeated passes over one image set."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from senseapp.core.errors import InvalidDataset, InvalidSpec, is_about_memory
from senseapp.data.images import ImageSet
from senseapp.measure.layout import Layout, choose_layout, lay_out, micro_batches, precision_context
from senseapp.measure.prefix import Prefix, ReplayMismatch
from senseapp.measure.replay import (
    DIFFERS,
    Replay,
    failure_of,
    find_replay_obstacle,
    plain_note,
    replayed,
    same,
)
from senseapp.networks.network import Abilities
from senseapp.networks.profile import CONVOLUTIONS, profile_model, watched_pass
from senseapp.networks.trace import CallTrace, trace_calls
from senseapp.networks.usage import add_uses, leaves_weights_out, others_note, weights_used
from senseapp.records.profile import ModelProfile
from senseapp.tasks import Task


def to_device(batch: Tensor, device: torch.device) -> Tensor:
    """Return ``batch`` on ``device``.

    Only from page-locked memory does a card copy by itself, while this thread prepares the next batch and passes are
    under way; what is read of it waits. torch keeps the page-locked copy until the card has it.
    """
    if device.type != "cuda" or batch.device.type != "cpu":
        return batch.to(device)
    return batch.pin_memory().to(device, non_blocking=True)


_PartT = TypeVar("_PartT")


def choose_device(name: str) -> torch.device:
    """Return the device called ``name``; ``auto`` takes CUDA, then MPS, then the CPU.

    Raises:
        InvalidSpec: there is no such device here.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise InvalidSpec(f"There is no device {name!r} on this machine. Choose cpu, or auto.") from error
    return device


@dataclass(slots=True, weakref_slot=True)
class MeasurementContext:
    """A :class:`~senseapp.networks.network.Network`: a model copy and the images, ready for whole passes and replay.

    ``trace`` is a watched pass in ``layout``; ``channels_last`` says whether the model convolves, and takes images that
    lie so; ``replay_obstacle`` why it cannot be replayed; ``seconds_per_image`` is the time of one whole pass.
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

    @classmethod
    def prepare(
        cls, model: nn.Module, images: ImageSet, *, device: str = "cpu", own: bool = False, task: Task
    ) -> MeasurementContext:
        """Copy ``model`` (unless ``own`` says that the caller gives it away) and watch one pass of it.

        Raises:
            InvalidDataset: there is no image.
            UnsupportedModel: the model fails on the images or returns no output of ``task``.
        """
        if len(images) == 0:
            raise InvalidDataset("There are no images to measure on. Bring at least one.")
        place = choose_device(device)
        private = (model if own else copy.deepcopy(model)).eval().requires_grad_(False).to(place)
        sample = images.batch(0, 1).to(place)
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
        )

    @property
    def abilities(self) -> Abilities:
        """What else can be done with it: all, but for replay where the model has its own way."""
        return Abilities(replay=plain_note(self.replay_obstacle) if self.replay_obstacle else "")

    @property
    def fixed_batch(self) -> None:
        """Any number of images."""
        return

    def run(self, batch: Tensor) -> object:
        """Return the model's raw output for images (N, C, H, W), in this layout and precision."""
        with torch.inference_mode(), precision_context(self.layout.precision, self.device):
            return self.model(self._arrange(batch))

    def settle_layout(self, *, most: int, forwards: float, precision: str) -> None:
        """Choose the layout by a timed trial, for ``forwards`` whole passes per image, and watch a pass in it."""
        chosen = choose_layout(
            self.model,
            self.trace,
            lambda size: self._arrange(self.images.batch(0, size)),
            most=most,
            passes=forwards * len(self.images),
            channels_last=self.channels_last,
            device=self.device,
        )
        self.take(replace(chosen, precision=precision))

    def take(self, layout: Layout) -> None:
        """Let passes run in ``layout`` from now on, and watch one, unless one of its kind is the one watched last."""
        watched, self.layout = self.layout, layout
        lay_out(self.model, layout)
        if (watched.channels_last, watched.precision) == (layout.channels_last, layout.precision):
            return
        further = {name: self.trace.uses[name].macs // self.trace.batch_size for name in self.trace.used_by_others}
        with precision_context(layout.precision, self.device):
            self.trace = trace_calls(self.model, self._arrange(self.images.batch(0, 1)))
        add_uses(self.trace, further)

    def avoid_channels_last(self) -> None:
        """Let passes run in the other memory order from now on, as some images fail in this one."""
        self.channels_last = False
        self.take(replace(self.layout, channels_last=False))

    def check_replay(self, positions: Sequence[int]) -> None:
        """Find out whether the model can be replayed from each of ``positions``; see :attr:`replay_obstacle`."""
        sample = self._arrange(self.images.batch(0, 1))
        with precision_context(self.layout.precision, self.device):
            self.replay_obstacle = find_replay_obstacle(self.model, self.trace, sample, sorted(set(positions)))

    def check_replay_over(self, span: tuple[int, int], positions: Sequence[int], plain: Tensor) -> None:
        """Find out whether a replay of the unchanged model gives ``plain`` for the images of ``span``, to the bit.

        It costs about one pass over them. Memory that lacks is raised.
        """
        if self.replay_obstacle:
            return
        try:
            with precision_context(self.layout.precision, self.device):
                found = replayed(self.model, self.trace, self.batches(*span), sorted(set(positions)))
            output = torch.cat([self.task.output(each).float().cpu() for each in found])
            self.replay_obstacle = None if same(output, plain) else DIFFERS
        except ReplayMismatch as mismatch:
            self.replay_obstacle = str(mismatch)
        except Exception as error:
            if is_about_memory(error):
                raise
            self.replay_obstacle = failure_of(error)

    def look_at_all_images(self) -> dict[str, int]:
        """Find layers that the first image does not use and others do; cheap where it uses all of them.

        Returns:
            What was found: multiply-accumulates by parameter, for :meth:`admit`.
        """
        if not leaves_weights_out(self.model, self.trace):
            return {}
        with precision_context(self.layout.precision, self.device):
            spans = micro_batches(0, len(self.images), self.layout.micro_batch)
            batches = (self._arrange(self.images.batch(low, high)) for low, high in spans)
            return weights_used(self.model, batches, self.model).further_uses(self.trace)

    def admit(self, further: Mapping[str, int]) -> str:
        """Let profile and trace know of weights that only other images use; return a sentence on them, if any."""
        if not further:
            return ""
        idle = {layer.name for layer in self.profile.layers if not layer.runs}
        add_uses(self.trace, further)
        sample = self.images.batch(0, 1).to(self.device)
        self.profile = profile_model(self.model, sample, trace=self.trace, task=self.task)
        return others_note(layer.name for layer in self.profile.layers if layer.runs and layer.name in idle)

    def batches(self, start: int, stop: int) -> list[Tensor]:
        """Return images ``start`` to ``stop`` as micro-batches on the device."""
        return self.arranged(self.images, start, stop)

    def arranged(self, images: ImageSet, start: int, stop: int) -> list[Tensor]:
        """Return images ``start`` to ``stop`` of any set as micro-batches on the device, in this layout."""
        spans = micro_batches(start, stop, self.layout.micro_batch)
        return [self._arrange(images.batch(low, high)) for low, high in spans]

    def prefixes(self, start: int, stop: int) -> list[Prefix]:
        """Return an empty prefix for each micro-batch of images ``start`` to ``stop``."""
        return [Prefix(self.trace, batch) for batch in self.batches(start, stop)]

    def outputs(self, start: int, stop: int) -> Tensor:
        """Return the model's output for images ``start`` to ``stop``, float32 (n, ...), by whole passes."""
        return self._gather(self.model, self.batches(start, stop))

    def baseline(self, start: int = 0) -> Tensor:
        """Return the output for all images from ``start`` on, float32 (n, ...), and time the passes."""
        spans = micro_batches(start, len(self.images), self.layout.micro_batch)
        with self._timed(len(self.images) - start):
            return torch.cat([self.outputs(low, high) for low, high in spans])

    def recorded_baseline(self, calls: Mapping[int, bool]) -> tuple[Tensor, list[Prefix]]:
        """Return what :meth:`baseline` does, and prefixes of all images that remember what ``calls`` returned."""
        replay, prefixes = Replay(self.model, self.trace), self.prefixes(0, len(self.images))
        with self._timed(len(self.images)), replay.installed():
            return self._gather(lambda prefix: replay.record(prefix, calls), prefixes), prefixes

    def advance(self, replay: Replay, prefixes: Sequence[Prefix], position: int) -> None:
        """Move every prefix to ``position``; the model must be unchanged."""
        with torch.inference_mode(), replay.installed(), precision_context(self.layout.precision, self.device):
            for prefix in prefixes:
                replay.advance(prefix, position)

    def resume(self, replay: Replay, prefixes: Sequence[Prefix]) -> Tensor:
        """Return the output for the prefixes' images, float32 (n, ...), computed from their position on."""
        with replay.installed():
            return self._gather(replay.resume, prefixes)

    @contextmanager
    def _timed(self, num_images: int) -> Iterator[None]:
        """Take the block for one pass over so many images."""
        started = time.perf_counter()
        yield
        self.seconds_per_image = (time.perf_counter() - started) / num_images

    def _gather(self, run: Callable[[_PartT], Any], parts: Sequence[_PartT]) -> Tensor:
        with torch.inference_mode(), precision_context(self.layout.precision, self.device):
            outputs = [self.task.output(run(part)) for part in parts]
        # Cloned outside inference mode, so that later code may use the result freely.
        return torch.cat([output.float().cpu().clone() for output in outputs])

    def _arrange(self, batch: Tensor) -> Tensor:
        batch = to_device(batch, self.device)
        if self.trace.input_overwritten:  # the images must stay as they are
            batch = batch.clone()
        return batch.contiguous(memory_format=torch.channels_last) if self.layout.channels_last else batch


def _watched_in_channels_last(model: nn.Module, sample: Tensor) -> CallTrace | None:
    """Watch a pass of ``model`` in that memory order, in which it stays; None if it has no use for it, or fails in it.

    A model that regards the output of a convolution as rows (``x.view(len(x), -1)``) needs the other order.
    """
    if not any(isinstance(module, CONVOLUTIONS) and module.weight.dim() == 4 for module in model.modules()):
        return None
    lay_out(model, Layout(channels_last=True))
    try:
        return trace_calls(model, sample.contiguous(memory_format=torch.channels_last))
    except Exception:  # if it fails in any order, the pass in the other one says why
        return None
