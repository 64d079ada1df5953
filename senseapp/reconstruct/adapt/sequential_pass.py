"""Sequential reconstruction pass over the layers of a compressed network.

The compressed and the uncompressed network advance together over the same images and stop before each module to be
changed, so the compressed network's inputs there come from changed modules only. Each image passes through each network
once, for any number of changed modules.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn

from senseapp.compressions.quantization.activations import watched
from senseapp.measure.context import MeasurementContext
from senseapp.measure.replay import Prefix, Replay, ReplayMismatch, prefix_bytes_per_image
from senseapp.reconstruct.repair import Repair
from senseapp.reconstruct.repair_sites import NormSite, pooled

Change = Callable[[Sequence[Tensor], Sequence[Tensor]], None]
"""Changes one module, given its inputs, by batch, in the uncompressed network and in the compressed one."""


class SequentialPass(Repair):
    """Changes a compressed network module by module, and can undo it.

    ``model``, a copy, as ``progress`` may raise, calls its modules in the order of ``dense``, the traced uncompressed
    network. ``batches`` are images (N, C, H, W) for the fit; ``progress`` receives a sentence at each visit.
    """

    def __init__(
        self,
        dense: MeasurementContext,
        model: nn.Module,
        batches: Sequence[Tensor],
        *,
        progress: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.model, self.trace = model, dense.trace
        self._networks = dense, replace(dense, model=model)
        self._batches, self._progress = batches, progress
        self._visits: list[tuple[int, str, Change]] = []
        self._old: list[tuple[Tensor, Tensor]] = []

    def visit(self, name: str, change: Change, tensors: Iterable[Tensor | None], position: int | None = None) -> None:
        """Visit the module ``name`` at its first call, or at ``position``; never if it is not called.

        ``tensors`` are those that ``change`` writes to.
        """
        starts = (call.start for call in self.trace.calls if call.module == name)
        place = next(starts, None) if position is None else position
        if place is not None:
            self._visits.append((place, name, change))
            self._old += [(tensor, tensor.detach().clone()) for tensor in tensors if tensor is not None]

    def visit_norm(self, name: str, site: NormSite, kept: Sequence[int] | None = None) -> None:
        """Match the statistics of the BatchNorm ``name``; ``kept`` are its kept channels, if some were removed."""
        self.visit(name, partial(_match_norm, site, kept), site.tensors)

    def fit(self, batches: Sequence[int] | None = None) -> bool:
        """Change the initial network on all or some batches; if the result is not finite, undo it and return False.

        The same if the model calls its layers in another order than in its trace.
        """
        self.undo()
        passed = self.passed(range(len(self._batches)) if batches is None else batches)
        if not passed:
            self.undo()
        return passed

    def passed(self, batches: Sequence[int]) -> bool:
        """Change the network as it is; return whether the pass ended and all changed values are finite."""
        try:
            with torch.no_grad():
                self._run(batches)
        except (ReplayMismatch, torch.linalg.LinAlgError):  # type: ignore[attr-defined]  # documented, not exported
            return False
        return all(bool(tensor.isfinite().all()) for tensor, _ in self._old)

    def undo(self) -> None:
        """Restore the initial network."""
        for tensor, old in self._old:
            tensor.data.copy_(old)

    @property
    def num_images(self) -> int:
        """Number of images in a fit to all batches."""
        return sum(map(len, self._images(range(len(self._batches)))))

    def _images(self, chosen: Sequence[int]) -> list[Tensor]:
        """Return the images of these batches, limited by memory, in micro-batches."""
        dense = self._networks[0]
        positions = [position for position, _, _ in self._visits]
        # The prefixes of both networks take at most 2 GiB.
        most = 2**30 // max(1, prefix_bytes_per_image(dense.trace, positions))
        # More than 128 images take longer and gain nothing: each has many positions.
        images = torch.cat([self._batches[index] for index in chosen])[: max(1, min(most, 128))]
        return [part.contiguous(memory_format=_order(part)) for part in torch.split(images, dense.layout.micro_batch)]

    def _run(self, batches: Sequence[int]) -> None:
        images = self._images(batches)
        original, changed = (_Stream(network, images) for network in self._networks)
        with original.installed(), changed.installed():
            for number, (position, name, change) in enumerate(sorted(self._visits, key=lambda each: each[0]), start=1):
                self._progress(f"{self.title}: {name}, {number} of {len(self._visits)}")
                change(original.inputs(name, position), changed.inputs(name, position))


def _match_norm(
    site: NormSite, kept: Sequence[int] | None, original: Sequence[Tensor], inputs: Sequence[Tensor]
) -> None:
    goal, found = (pooled([site.moments(part) for part in batches]) for batches in (original, inputs))
    site.match(goal.kept(kept), found, inputs[0], sum(map(len, inputs)))


class _Stream:
    """A single pass of one network over batches of images, which stops at positions, inside :meth:`installed`."""

    def __init__(self, context: MeasurementContext, batches: Sequence[Tensor]) -> None:
        self._model, self._replay = context.model, Replay(context.model, context.trace)
        self._prefixes = [Prefix(context.trace, batch) for batch in batches]
        self._here: tuple[str, int, list[Tensor]] = "", -1, []

    def installed(self) -> AbstractContextManager[None]:
        """Enable continuation from the last position inside the block."""
        return self._replay.installed()

    def inputs(self, module: str, position: int) -> list[Tensor]:
        """Continue to the call of ``module`` that starts at ``position``; return its input in each batch."""
        if self._here[:2] != (module, position):
            found: list[Tensor] = []
            with (
                watched(self._model.get_submodule(module), lambda inputs: found.append(inputs[0])),
                torch.inference_mode(),
            ):
                for prefix in self._prefixes:
                    self._replay.advance(prefix, position)
            self._here = module, position, found
        return self._here[2]


def _order(images: Tensor) -> torch.memory_format:
    last = images.dim() == 4 and images.is_contiguous(memory_format=torch.channels_last)
    return torch.channels_last if last else torch.contiguous_format
