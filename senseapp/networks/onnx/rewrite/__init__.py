"""Rewrites of a graph between its file and its modules: one small pass each, in the order in which they run.

A pass takes a :class:`~senseapp.networks.onnx.torch_graph.TorchGraph` and returns another one that computes the same.
``batch.py`` frees a batch that an export has fixed.
"""

from __future__ import annotations

from collections.abc import Callable

from senseapp.networks.onnx.infer import Facts
from senseapp.networks.onnx.rewrite.activations import merge_activations
from senseapp.networks.onnx.rewrite.shapes import (
    fix_known_values,
    fix_reshape_targets,
    merge_image_norms,
    merge_rolls,
)
from senseapp.networks.onnx.torch_graph import TorchGraph

BUILDING: tuple[Callable[[TorchGraph, Facts], TorchGraph], ...] = (
    fix_known_values,
    fix_reshape_targets,
    merge_rolls,
    merge_image_norms,
    merge_activations,
)
"""Passes that need the values of the graph for some numbers of images."""


def simplified(graph: TorchGraph, facts: Facts) -> TorchGraph:
    """Return the graph as modules are built from it."""
    for rewrite in BUILDING:
        graph = rewrite(graph, facts)
    return graph
