"""A Model Explorer overlay, and the exported graph whose nodes it names.

Model Explorer shows a ``.pt2`` with the names of its fx nodes (``conv2d_3``), not of its modules, so the two files are
made together.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from senseapp.core.errors import InvalidSchedule, UnsupportedModel, first_line_of
from senseapp.core.registry import grouped
from senseapp.descriptions import Effect
from senseapp.formats.base import ExportFormat, levels_by_layer, noted
from senseapp.records.schedule import Schedule

if TYPE_CHECKING:
    import torch
    from torch import nn

_ROBUST, _MIDDLE, _FRAGILE = "#2c7bb6", "#ffffbf", "#d7191c"  # blue to red through yellow, colour-blind safe


def schedule_values(schedule: Schedule) -> dict[str, float]:
    """Return the effect of the schedule on each layer: the fraction removed, or the bits."""
    return levels_by_layer(schedule, *Effect)


def exported_graph(module: nn.Module, sample: torch.Tensor) -> tuple[dict[str, list[str]], bytes]:
    """Return the names of the nodes of each layer, and the network as a ``.pt2`` file; one serves every overlay.

    The network is exported in ``eval()`` mode, on one batch ``sample`` (N, C, H, W), and left as it was.
    """
    import torch

    from senseapp.compat.torch_internals import without_stack_traces
    from senseapp.networks.network import flags_kept

    try:
        with flags_kept(module), torch.no_grad(), without_stack_traces():
            program = torch.export.export(module.eval(), (sample,))
    except Exception as error:  # torch.export raises many kinds, all of which mean the same to a person
        raise UnsupportedModel(f"This network cannot be exported as a graph: {first_line_of(error)}.") from error
    stream = io.BytesIO()
    torch.export.save(program, stream)
    # Nodes belong to the innermost module.
    computing = (node for node in program.graph.nodes if node.op == "call_function")
    stacks = ((node.name, node.meta.get("nn_module_stack")) for node in computing)
    nodes = grouped((next(reversed(stack.values()))[0], name) for name, stack in stacks if stack)
    return nodes, stream.getvalue()


def overlay_of(
    values: Mapping[str, float], nodes: Mapping[str, list[str]], *, title: str, notes: Sequence[str] = ()
) -> str:
    """Return the node data (JSON) of a graph called ``title``: one finite number for each of some layers."""
    missing = [layer for layer in values if layer not in nodes]
    if missing:
        raise InvalidSchedule(
            f"{missing[0]} has no node in the exported graph of this model, so it cannot be coloured."
        )
    results = {node: {"value": value} for layer, value in values.items() for node in nodes[layer]}
    gradient = [{"stop": stop, "bgColor": colour} for stop, colour in ((0, _ROBUST), (0.5, _MIDDLE), (1, _FRAGILE))]
    return noted({"name": title, "results": results, "gradient": gradient}, notes)


MODEL_EXPLORER = ExportFormat(
    name="model-explorer",
    title="Model Explorer",
    reader="Google's Model Explorer: open the .pt2 beside it, then load this file as custom node data.",
    suffix=".model-explorer.json",
    usage="""\
# pip install ai-edge-model-explorer torch; it reads a .pt2 with the torch of the environment it is in
import model_explorer

config = model_explorer.config()
config.add_model_from_path("STEM.pt2").add_node_data_from_path("FILE")
model_explorer.visualize_from_config(config)
""",
    render=None,
)
