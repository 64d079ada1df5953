"""Accuracy repair without training: the moments of a compressed network are matched to the uncompressed one's.

In a pass over a batch, each BatchNorm and each layer to be corrected is matched when it is reached, so that its values
come from repaired sites only. Batches are as large as memory allows; a site is matched, at every batch, to the pooled
moments of all so far. On EfficientNet-Lite0, 256 photographs in four batches gave the same result as in one, and a
second pass made no difference.
"""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial

import torch
from torch import Tensor, nn

from senseapp.compressions.base import WeightGrid
from senseapp.compressions.quantization.activations import changed_inputs
from senseapp.core.texts import plural
from senseapp.reconstruct.apply import AppliedModel
from senseapp.reconstruct.repair_sites import (
    LayerSite,
    Moments,
    NormSite,
    Site,
    batch_norms,
    correctable_layers,
    pooled,
)

_NOT_FINITE = "Nothing was repaired: on the calibration images, the compressed model's activations are not finite."

Part = tuple[int, int]
"""Index of a batch, and of a module's call in its pass."""


class Reference:
    """Moments at each BatchNorm and each layer with a bias of the uncompressed network, on calibration ``batches``.

    ``moments`` are by name of the norm or layer, then by batch and call; ``norms`` are names, ``widths`` channels by
    name, and ``shapes`` those of the weight of each layer with a bias.
    """

    def __init__(self, model: nn.Module, batches: Sequence[Tensor]) -> None:
        self.batches = tuple(batches)
        self.norms = tuple(batch_norms(model))
        self.shapes = {name: _weight_shape(model, name) for name in correctable_layers(model)}
        sites: dict[str, Site] = {name: NormSite(module) for name, module in batch_norms(model).items()}
        for name in self.shapes:
            sites[name] = LayerSite(model.get_submodule(name), scale=False)
        self.widths = {name: site.width for name, site in sites.items()}
        self.moments: dict[str, dict[Part, Moments]] = {name: {} for name in sites}

        def note(name: str, part: Part, values: Tensor) -> Tensor:
            self.moments[name][part] = sites[name].moments(values)
            return values

        _pass(model, sites, self.batches, range(len(self.batches)), note)


class Repair(ABC):
    """Reversible change of a compressed network, in place, that recovers accuracy; ``title`` is for display."""

    title: str

    @abstractmethod
    def fit(self, batches: Sequence[int] | None = None) -> bool:
        """Repair the initial network by all or some batches; if the result is not finite, undo and return False."""

    @abstractmethod
    def undo(self) -> None:
        """Restore the initial network."""

    @abstractmethod
    def sentences(self, *, fitted: bool) -> tuple[str, ...]:
        """Return sentences on the changes, and on what was not changed."""

    @contextmanager
    def fitted(self, batches: Sequence[int] | None = None) -> Iterator[bool]:
        """Repair the network inside the block only; yields whether every value is finite, see :meth:`fit`."""
        try:
            yield self.fit(batches)
        finally:
            self.undo()


class Matching(Repair):
    """Matches a compressed network, in ``eval()`` mode, to a :class:`Reference`, and can undo it.

    The outputs of ``layers`` with a bias are corrected, besides those of layers that lost channels; with ``scale``,
    each channel may have its own scale. ``kept`` are positions of the kept channels, by norm or layer that lost some;
    ``grids`` are, by layer, the grid that its weight lies on and its scale, which changes with the weight. Matched
    norms and layers are in ``sites``, norms that lost unknown channels in ``skipped``.
    """

    title = "Statistics matched"

    def __init__(
        self,
        model: nn.Module,
        reference: Reference,
        *,
        layers: Collection[str] = (),
        kept: Mapping[str, Sequence[int]] | None = None,
        scale: bool = True,
        grids: Mapping[str, tuple[WeightGrid, Tensor]] | None = None,
    ) -> None:
        self._model, self._reference, self.kept = model, reference, kept or {}
        found: dict[str, Site] = {name: NormSite(module) for name, module in batch_norms(model).items()}
        for name, may_scale in correctable_layers(model).items():
            if name in layers or _weight_shape(model, name) != reference.shapes.get(name):
                grid = None if grids is None else grids.get(name)
                found[name] = LayerSite(model.get_submodule(name), scale=scale and may_scale, grid=grid)
        self.sites = {name: site for name, site in found.items() if self._is_comparable(name, site)}
        self.skipped = tuple(name for name in reference.norms if name not in self.sites)

    @property
    def norms(self) -> tuple[str, ...]:
        """Names of the norms that are matched and run."""
        return tuple(name for name in self._used() if name in self._reference.norms)

    @property
    def layers(self) -> tuple[str, ...]:
        """Names of the layers that are corrected and called."""
        return tuple(name for name in self._used() if name not in self._reference.norms)

    def fit(self, batches: Sequence[int] | None = None) -> bool:
        """Match the initial network on all or some batches; if the result is not finite, undo it and return False."""
        chosen = range(len(self._reference.batches)) if batches is None else batches
        self.undo()
        found: dict[str, dict[Part, Moments]] = {name: {} for name in self.sites}
        images = sum(len(self._reference.batches[index]) for index in chosen)

        def match(name: str, part: Part, values: Tensor) -> Tensor:
            wanted, site = self._reference.moments[name], self.sites[name]
            if part not in wanted:
                return values
            found[name][part] = site.moments(values)
            goal = pooled([wanted[seen] for seen in found[name]]).kept(self.kept.get(name))
            return site.match(goal, pooled(list(found[name].values())), values, images)

        _pass(self._model, self.sites, self._reference.batches, chosen, match)
        finite = all(bool(each.isfinite().all()) for site in self.sites.values() for each in site.tensors)
        if not finite:
            self.undo()
        return finite

    def undo(self) -> None:
        """Restore the initial network."""
        with torch.no_grad():
            for site in self.sites.values():
                site.undo()

    def sentences(self, *, fitted: bool) -> tuple[str, ...]:
        """Return sentences on matched norms and layers, and on norms that were not matched."""
        if not fitted:
            return (_NOT_FINITE,)
        done = []
        if self.norms:
            done.append(f"the mean and spread of values in {plural(len(self.norms), 'normalisation layer')}")
        if self.layers:
            done.append(f"the outputs of {plural(len(self.layers), 'compressed layer')}")
        if not done:
            return ("Nothing could be repaired: no normalisation layer runs, and no compressed layer has a bias.",)
        notes = [
            f"Repair matched {' and '.join(done)} to the uncompressed network's on the same "
            f"{sum(map(len, self._reference.batches))} unlabelled images."
        ]
        if self.skipped:
            notes.append(
                f"Left as they are, since which of their channels went is not known: "
                f"{plural(len(self.skipped), 'normalisation layer')} (first: {self.skipped[0]})."
            )
        return tuple(notes)

    def _used(self) -> Iterator[str]:
        return (name for name in self.sites if self._reference.moments[name])

    def _is_comparable(self, name: str, site: Site) -> bool:
        width = self._reference.widths.get(name)
        return width is not None and (len(self.kept[name]) if name in self.kept else width) == site.width


def _weight_shape(model: nn.Module, name: str) -> tuple[int, ...]:
    weight = model.get_submodule(name).weight  # a parameter, or the result of a parametrization
    return tuple(weight.shape) if isinstance(weight, Tensor) else ()


def _pass(
    model: nn.Module,
    sites: Mapping[str, Site],
    batches: Sequence[Tensor],
    chosen: Sequence[int],
    at_site: Callable[[str, Part, Tensor], Tensor],
) -> None:
    """Run ``model`` on the chosen batches; ``at_site`` replaces the values at each site."""
    calls: Counter[str] = Counter()
    batch = 0

    def passing(name: str, values: Tensor) -> Tensor:
        part = batch, calls[name]
        calls[name] += 1
        return at_site(name, part, values)

    with ExitStack() as stack, torch.no_grad():
        for name, site in sites.items():
            module, change = model.get_submodule(name), partial(passing, name)
            if site.reads_input:
                stack.enter_context(changed_inputs(module, change))
            else:
                stack.enter_context(module.register_forward_hook(lambda *call, change=change: change(call[-1])))
        for batch in chosen:
            calls.clear()
            model(batches[batch].clone())  # some networks write into their input


def matching_of(applied: AppliedModel, reference: Reference, *, scale: bool) -> Matching:
    """Return the matching of the norms and the compressed layers of ``applied`` to ``reference``."""
    members = {member for entry in applied.reached for member in entry.members}
    return Matching(
        applied.model, reference, layers=members, kept=applied.kept_channels, scale=scale, grids=applied.grids
    )
