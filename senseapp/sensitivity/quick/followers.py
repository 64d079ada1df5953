"""Modules that a layer's output runs straight into, and nothing else does: what they do to its change is exact.

The first activation after a layer bends most of what a large change of its weights does. Answers that are followed
through BatchNorm and activation before anything is linearised rank layers better, most of all at few bits.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from torch import nn

from senseapp.layers import Call, CallTrace

_LINEAR = (
    nn.Identity,
    nn.Dropout,
    nn.Dropout2d,
    nn.BatchNorm1d,
    nn.BatchNorm2d,
    nn.BatchNorm3d,
    nn.AvgPool2d,
    nn.AdaptiveAvgPool2d,
    nn.Flatten,
)
"""Affine in ``eval()`` mode: a chain that ends in one of these is as good without it."""


@dataclass(frozen=True, slots=True)
class Follower:
    """One module of a chain, and the shape of its output for one image."""

    module: nn.Module
    shape: tuple[int, ...]


def followers_of(
    trace: CallTrace, model: nn.Module, norms: Mapping[str, nn.Module] = MappingProxyType({})
) -> dict[str, list[tuple[Follower, ...]]]:
    """Return the chain of modules after each call, by module name and in order of calls.

    A chain goes on as long as the next call is all that reads the output, takes nothing else, and multiplies by no
    weights.

    Args:
        trace: of one image.
        model: the traced network.
        norms: by layer, what will be folded into it: without these no chain of that layer is as good.
    """
    layers = {parameter.rpartition(".")[0] for parameter, use in trace.uses.items() if use.macs}
    within = {name[:end] for name in layers for end in (*_dots(name), len(name))}  # they hold a layer, or are one
    chains: dict[str, list[tuple[Follower, ...]]] = {}
    for call in trace.calls:
        chain = [Follower(model.get_submodule(c.module), c.output_shape) for c in _readers(trace, call, within)]
        while chain and type(chain[-1].module) in _LINEAR and chain[-1].module is not norms.get(call.module):
            chain.pop()
        chains.setdefault(call.module, []).append(tuple(chain))
    return chains


def _readers(trace: CallTrace, call: Call, within: set[str]) -> Iterator[Call]:
    while call.after < len(trace.calls):
        reader = trace.calls[call.after]
        if reader.module in within or not reader.alone:
            return
        if call.last_needed > reader.end and not reader.passes_on:  # what reads its output reads this one
            return
        yield reader
        call = reader


def _dots(name: str) -> Iterator[int]:
    return (place for place, letter in enumerate(name) if letter == ".")
