"""One interface for a torch module with its context and for a file open in a runtime; state that is put back."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from senseapp.compat.torch_internals import restored
from senseapp.core.errors import UnsupportedModel
from senseapp.core.foreign_values import read_json, whole


@dataclass(frozen=True, slots=True, kw_only=True)
class Abilities:
    """Abilities of a torch module besides running it: each is empty, or the reason why it is missing.

    Attributes:
        gradients: back-propagation, which the quick scan and gradient histograms need.
        structural_pruning: removal of whole channels.
    """

    gradients: str = ""
    structural_pruning: str = ""

    @property
    def missing(self) -> tuple[str, ...]:
        """The sentences on what cannot be done."""
        return tuple(filter(None, (self.gradients, self.structural_pruning)))


class Network(Protocol):
    """A network that returns outputs for images. Only its task interprets them."""

    @property
    def fixed_batch(self) -> int | None:
        """Images that each call must have; None for any number."""

    def run(self, batch: Tensor) -> object:
        """Return the raw output for images (N, C, H, W): tensors in any nesting of lists, tuples and dictionaries."""


_SHOWN = 3  # nodes that are named

OUTPUTS = "senseapp.outputs"
"""The entry of a file's metadata that says how its output tensors are nested, where it is not one tensor alone."""


def nesting_text(places: Any) -> str:
    """Return nested lists, tuples and dictionaries of places in a list of tensors as JSON; see :func:`nested`."""

    def written(part: Any) -> Any:
        if isinstance(part, Mapping):
            return {"dict": {str(key): written(each) for key, each in part.items()}}
        if isinstance(part, tuple | list):
            return {"tuple" if isinstance(part, tuple) else "list": [written(each) for each in part]}
        return part

    return json.dumps(written(places))


def nested(tensors: Sequence[Tensor], text: str) -> object:
    """Return ``tensors`` nested as :func:`nesting_text` says; None stays None.

    Raises UnsupportedModel if the text, which a file may hold, is none of its own, or names other tensors.

    >>> nested(["a", "b"], nesting_text({"out": 1, "aux": (0, None)}))
    {'out': 'b', 'aux': ('a', None)}
    """

    def read(part: Any) -> Any:
        if part is None:
            return None
        if not isinstance(part, dict):
            return tensors[whole(part, "an output", most=len(tensors) - 1)]
        ((kind, inside),) = part.items()
        if kind == "dict":
            return {key: read(each) for key, each in inside.items()}
        found = [read(each) for each in inside]
        return tuple(found) if kind == "tuple" else found

    try:
        return read(read_json(text))
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise UnsupportedModel(f"How the outputs of the file are nested is damaged in it ({OUTPUTS}).") from error


def in_calls(network: Network, batch: Tensor) -> Sequence[Tensor]:
    """Return ``batch`` (N, C, H, W) in parts as large as calls of ``network`` must be."""
    return torch.split(batch, network.fixed_batch) if network.fixed_batch else (batch,)


def abilities_of(module: nn.Module) -> Abilities:
    """Return the abilities of ``module``: all, unless onnxruntime computes some nodes of its file."""
    nodes: Sequence[str] = getattr(module, "in_runtime", ())
    if not nodes:
        return Abilities()
    named = ", ".join(nodes[:_SHOWN]) + (f" and {len(nodes) - _SHOWN} others" if len(nodes) > _SHOWN else "")
    return Abilities(
        gradients=f"onnxruntime computes {named} and has no gradients of that: there are no quick estimates, and "
        "weights are not tuned by descent.",
        structural_pruning=f"Channels are not removed: which of them {named} couples is not known.",
    )


def images_per_pass(module: nn.Module) -> int | None:
    """Return the number of images that each pass of ``module`` computes; None if it is that of its input.

    It is a number for a network from a file with a fixed batch: it takes any number of images, in several passes.
    """
    found: int | None = getattr(module, "images_per_pass", None)
    return found


@contextmanager
def state_kept(model: nn.Module) -> Iterator[list[str]]:
    """Put attributes and buffers of all modules back on exit, in place and also on error, whatever passes write there.

    Children, hooks, parameters' numbers and training flags are not restored. Yields a list that holds the names of what
    was put back, on exit.
    """
    buffers = [(name, buffer, buffer.detach().clone()) for name, buffer in model.named_buffers()]
    changed: list[str] = []
    try:
        with restored(model.modules()) as attributes:
            yield changed
    finally:
        changed += attributes
        with torch.no_grad():
            for name, buffer, value in buffers:
                if not torch.equal(buffer, value):
                    buffer.copy_(value)
                    changed.append(name)


@contextmanager
def flags_kept(model: nn.Module) -> Iterator[None]:
    """Put training flags of all modules, and of parameters whether they require gradients, back on exit."""
    training = [(module, module.training) for module in model.modules()]
    gradients = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
    try:
        yield
    finally:
        for module, trains in training:
            module.training = trains
        for parameter, requires in gradients:
            parameter.requires_grad_(requires)
