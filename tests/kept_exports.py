"""Exports of networks by torch, each made once for all tests of a process: one of the demo takes seconds."""

import copy
import functools
import hashlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

_MOST = 32  # programs, which hold the weights of their networks
_CONTENTS = ("_modules", "_parameters", "_buffers")

Export = Callable[[nn.Module, Tensor], Any]


def kept(export: Export, how: Callable[[], object]) -> Export:
    """Return ``export``, which answers from what it made where network, images and ``how`` it exports are the same."""
    programs: dict[str, tuple[Any, nn.Module, object]] = {}

    @functools.wraps(export)
    def exported(model: nn.Module, example: Tensor) -> Any:
        if any(map(_depends_on_more, model.modules())):
            return export(model, example)
        functions = how()
        key = _key(model, example, functions)
        if key not in programs:
            own = copy.deepcopy(model)  # tests change the weights of theirs
            programs[key] = export(own, example), own, functions
            for oldest in list(programs)[:-_MOST]:
                del programs[oldest]
        program = copy.copy(programs[key][0])
        program.model = program.model.clone()  # constant folding changes it
        return program

    return exported


def _depends_on_more(module: nn.Module) -> bool:
    """Return whether a module has hooks, or tensors that are neither parameters nor buffers."""
    hooks = module._forward_hooks or module._forward_pre_hooks
    return bool(hooks) or any(isinstance(value, Tensor) for value in vars(module).values())


def _key(model: nn.Module, example: Tensor, functions: object) -> str:
    """Return a digest of all that an export depends on."""
    digest = hashlib.sha256(repr((functions, model.training, example.shape, example.dtype)).encode())
    for name, module in model.named_modules():
        settings = {key: value for key, value in vars(module).items() if key not in _CONTENTS}
        digest.update(repr((name, type(module), id(type(module)), settings)).encode())
    seen: dict[int, str] = {}
    for name, tensor in [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]:
        first = seen.setdefault(id(tensor), name)
        digest.update(repr((name, first, tensor.shape, tensor.dtype, tensor.stride())).encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
