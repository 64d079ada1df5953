"""What leaves this machine with an exported network: its operations and weights, and not where its source lay."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.export import ExportedProgram


def without_source_paths(program: ExportedProgram) -> ExportedProgram:
    """Take from every node of ``program`` the lines of source that made it, which name folders; return it."""
    from torch.fx import GraphModule

    for module in program.graph_module.modules():
        if isinstance(module, GraphModule):
            for node in module.graph.nodes:
                node.meta.pop("stack_trace", None)
    return program
