"""Weights that a network uses for some images only, which the trace of one image does not show."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from senseapp.compat.torch_internals import OperationMode, storage_of
from senseapp.core.texts import first_names
from senseapp.networks.products import products_of
from senseapp.networks.profile import compressible_weights
from senseapp.networks.trace import CallTrace, WeightUse, tensors_in


@dataclass(slots=True)
class WeightsUsed:
    """Counts uses of the parameters of ``model`` by operations inside :meth:`watching`.

    ``macs`` are multiply-accumulates by parameter, over all images; 0 for a parameter that is read but not multiplied.
    """

    model: nn.Module
    macs: dict[str, int] = field(default_factory=dict)
    images: int = 0

    @contextmanager
    def watching(self, num_images: int) -> Iterator[None]:
        """Count uses in a pass over ``num_images`` images; finds weights again whose layout changed between passes."""
        names = {storage_of(parameter): name for name, parameter in self.model.named_parameters()}

        def saw(func: Any, arguments: tuple[Any, ...], keywords: Mapping[str, Any], output: Any) -> None:
            for tensor in tensors_in((arguments, keywords)):
                if name := names.get(storage_of(tensor)):
                    self.macs.setdefault(name, 0)
            for product in products_of(func, arguments, output):
                known = [name for tensor in product.weights if (name := names.get(storage_of(tensor)))]
                if known:
                    self.macs[known[0]] += product.macs

        with OperationMode(saw):
            yield
        self.images += num_images

    def further_uses(self, trace: CallTrace) -> dict[str, int]:
        """Return the mean multiply-accumulates per image of the parameters that ``trace`` does not use."""
        return {name: macs // max(1, self.images) for name, macs in self.macs.items() if name not in trace.uses}


def leaves_weights_out(model: nn.Module, trace: CallTrace) -> bool:
    """Return whether the traced pass does not use the weight of some layer."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    weights = (getattr(module, attribute) for _, module, attribute in compressible_weights(model))
    return any(names[id(weight)] not in trace.uses for weight in weights if id(weight) in names)


def weights_used(model: nn.Module, batches: Iterable[Tensor], run: Callable[[Tensor], Any]) -> WeightsUsed:
    """Count the weights that ``run``, which calls ``model``, uses on each of ``batches``, (N, C, H, W)."""
    used = WeightsUsed(model)
    for batch in batches:
        with torch.inference_mode(False), torch.no_grad(), used.watching(len(batch)):
            run(batch)
    return used


def add_uses(trace: CallTrace, further: Mapping[str, int]) -> None:
    """Add to ``trace`` the parameters that other images use, with their multiply-accumulates for one image.

    The events of these uses are not known, so no call may be skipped for them.
    """
    for name, macs in further.items():
        trace.uses[name] = WeightUse(first_event=0, macs=macs * trace.batch_size)
        trace.used_by_others.add(name)


def others_note(layers: Iterable[str]) -> str:
    """Return the sentence on layers that only some of the images use; empty if there is none."""
    names = list(layers)
    if not names:
        return ""
    verb = "is" if len(names) == 1 else "are"
    return (
        f"{first_names(names)} {verb} used by some of the images only; multiply-accumulates there are means over the "
        "images."
    )
