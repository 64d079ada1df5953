"""One export to ONNX for all weights of a network: tracing takes nine tenths of an export, weights the rest."""

from __future__ import annotations

import copy
from functools import cached_property

import torch
from torch import Tensor, nn

from senseapp.compat.torch_internals import has_forward_hooks
from senseapp.reconstruct.write import onnx_copy, onnx_program, optimized
from senseapp.runtimes.base import Exporter


class OnnxTemplate(Exporter):
    """A network that is exported once; networks that differ from it only in values of weights are not traced again.

    Args:
        model: the network; it is copied on first use.
        example: images that it takes, (N, C, H, W).
    """

    def write(self, model: nn.Module) -> bytes:
        """Return ``model`` as float ONNX: what :func:`onnx_copy` returns, but for the names of nodes.

        Raises InvalidSpec where it cannot be exported.
        """
        if not self._differs_in_weights_only(model):
            return onnx_copy(model, self.example)
        program = copy.copy(self._program)
        program.model = self._program.model.clone()
        names = program.model.graph.initializers
        weights = {name: each.detach().cpu().contiguous() for name, each in _tensors(model).items() if name in names}
        program.apply_weights(weights)
        return optimized(program)

    @cached_property
    def _program(self) -> torch.onnx.ONNXProgram:
        with torch.no_grad():
            return onnx_program(copy.deepcopy(self.model).cpu(), self.example)

    def _differs_in_weights_only(self, model: nn.Module) -> bool:
        """Whether both have modules of the same classes without hooks, and each tensor that differs can be replaced."""
        if _structure(model) != _structure(self.model) or any(map(has_forward_hooks, model.modules())):
            return False
        before, replaceable = _tensors(self.model), self._program.model.graph.initializers
        named = {id(each) for name, each in _tensors(model).items() if name in replaceable}
        return all(id(each) in named or torch.equal(each, before[name]) for name, each in _tensors(model).items())


def _structure(model: nn.Module) -> list[object]:
    """Return what is traced, but for values: classes of modules; shapes, types and sharing of tensors."""
    tensors = _tensors(model)
    first = {id(each): name for name, each in reversed(tensors.items())}
    modules = [(name, type(each)) for name, each in model.named_modules()]
    return [*modules, *((name, each.shape, each.dtype, first[id(each)]) for name, each in tensors.items())]


def _tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return every parameter and buffer, a shared one under each of its names."""
    return {
        **dict(model.named_parameters(remove_duplicate=False)),
        **dict(model.named_buffers(remove_duplicate=False)),
    }
