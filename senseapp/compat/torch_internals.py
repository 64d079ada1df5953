"""Undocumented names of torch."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram
from torch.fx import GraphModule
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_unflatten

aten = torch.ops.aten
"""ATen's operations as overload packets. Which of them a module calls, and the order of their arguments, is torch's own
business; ``tests/unit/test_compat.py`` lists the arguments that :mod:`senseapp.networks.products` reads."""

ATTENTIONS = (
    aten._scaled_dot_product_flash_attention_for_cpu,
    aten._scaled_dot_product_flash_attention,
    aten._scaled_dot_product_efficient_attention,
    aten._scaled_dot_product_cudnn_attention,
    aten._scaled_dot_product_fused_attention_overrideable,
)
"""What ``scaled_dot_product_attention`` becomes, by device: each counts as two matrix products."""

MULTI_HEAD_ATTENTION = aten._native_multi_head_attention
"""The fused kernel of ``nn.MultiheadAttention`` in evaluation: its products are counted."""

ENCODER_LAYER = aten._transformer_encoder_layer_fwd
"""The fused kernel of ``nn.TransformerEncoderLayer`` in evaluation: its products are counted."""

WEIGHT_NORM = aten._weight_norm_interface
"""The kernel of weight normalisation, after which a zero of the weight is still a zero."""

COPIES = (aten._to_copy, aten._unsafe_view)
"""What casts and reshapes become, which leave values as they are."""


@contextmanager
def without_stack_traces() -> Iterator[None]:
    """Trace graphs inside without the lines of source of each node: a third of the time of an export to ONNX."""
    from torch.fx import config

    before = config.do_not_emit_stack_traces
    config.do_not_emit_stack_traces = True
    try:
        yield
    finally:
        config.do_not_emit_stack_traces = before


_OUT_OF_PLACE = {
    aten.hardtanh_.default: aten.hardtanh.default,
    aten.hardswish_.default: aten.hardswish.default,
    aten.relu_.default: aten.relu.default,
    aten.silu_.default: aten.silu.default,
}


def activations_out_of_place(program: torch.export.ExportedProgram) -> None:
    """Let activations of a traced graph return tensors of their own, where nobody else sees what they overwrite.

    To ONNX, torch decomposes ``hardtanh_`` into operations on symbolic sizes: half the time of an export.
    """
    for node in program.graph.nodes:
        other = _OUT_OF_PLACE.get(node.target) if node.op == "call_function" else None
        if other is not None and len(node.args[0].users) == 1 and _is_fresh(node.args[0]):
            node.target = other
    program.graph_module.recompile()


def nested_outputs(program: ExportedProgram) -> Any:
    """Return what a traced network returns, nested as it does so, with the place of each tensor for the tensor."""
    places = iter(range(len(program.graph_signature.user_outputs)))
    leaves = [None if name is None else next(places) for name in program.graph_signature.user_outputs]
    return tree_unflatten(leaves, program.call_spec.out_spec)


def _is_fresh(node: Any) -> bool:
    """Whether an operation of a traced graph returns new tensors, none that share memory with its inputs."""
    schema = getattr(node.target, "_schema", None)
    return schema is not None and all(each.alias_info is None for each in schema.returns)


class OperationMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Shows each operation that runs inside, below autograd, where modules and functionals look alike.

    ``TorchFunctionMode``, the documented kind, does not see what one operation is made of.
    """

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()  # type: ignore[no-untyped-call]

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing here is compiled; else the first operation that is seen would load the compiler, which takes 2 s."""
        return False

    def __init__(self, saw: Callable[[Any, tuple[Any, ...], Mapping[str, Any], Any], None]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._saw = saw

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        output = func(*args, **kwargs)
        self._saw(func, args, kwargs, output)
        return output


class UnreadableTensor(Tensor):
    """Has the shape, strides, type and device of a tensor and no memory; any operation on its numbers raises.

    Operations that are made of others, such as ``to`` and ``dropout``, are taken apart first: those that turn out to do
    nothing return it as it is, as they do for any tensor.
    """

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]
    error: Callable[[], BaseException]

    @staticmethod
    def like(tensor: Tensor, shape: Sequence[int] | None, error: Callable[[], BaseException]) -> UnreadableTensor:
        """Return one like ``tensor``, perhaps of another ``shape``; reading it raises what ``error`` returns."""
        strides = tensor.stride() if shape is None else None
        made: UnreadableTensor = Tensor._make_wrapper_subclass(
            UnreadableTensor,
            tensor.shape if shape is None else torch.Size(shape),
            strides=strides,
            dtype=tensor.dtype,
            device=tensor.device,
        )
        made.error = error
        return made

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        taken_apart = func.decompose(*args, **(kwargs or {}))
        if taken_apart is not NotImplemented:
            return taken_apart
        raise next(leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, cls)).error()


def operation_of(func: Any) -> Any:
    """Return the packet in :data:`aten` that what :class:`OperationMode` saw is an overload of; None if in none."""
    return getattr(func, "overloadpacket", None)


def version_of(tensor: Tensor) -> int:
    """Return how often ``tensor`` was written to in place; autograd counts it, except for inference tensors."""
    return tensor._version


def storage_of(tensor: Tensor) -> int:
    """Return a number that views of one tensor share; on the ``meta`` device, too, which has no addresses."""
    storage = tensor.untyped_storage()
    return storage.data_ptr() or int(storage._cdata)


_ABSENT = object()


@contextmanager
def restored(modules: Iterable[nn.Module]) -> Iterator[None]:
    """Undo, on exit and also on error, what the body does to the attributes of ``modules``.

    Pruning gives modules new parameters and sizes and never writes to the old tensors, so the old objects are put back
    and nothing is copied; so are entries of dictionaries, in which some modules keep what they computed from their
    weights. Children, hooks and training flags are left alone, for whoever else holds on to the module.
    """
    saved = [(table, dict(table)) for module in dict.fromkeys(modules) for table in _tables(module)]
    try:
        yield
    finally:
        for table, before in saved:
            for name in table.keys() - before.keys():
                del table[name]
            for name, value in before.items():
                if name != "training" and table.get(name, _ABSENT) is not value:  # only what differs
                    table[name] = value


def _tables(module: nn.Module) -> list[dict[str, Any]]:
    """Return the dictionaries that hold a module's own state: attributes, parameters, buffers, and its own ones."""
    attributes = vars(module)
    own = [value for name, value in attributes.items() if isinstance(value, dict) and not name.startswith("_")]
    return [attributes, attributes["_parameters"], attributes["_buffers"], *own]


def has_forward_hooks(module: nn.Module) -> bool:
    """Tell whether somebody else's hooks run around the forward pass of ``module``."""
    return bool(module._forward_hooks or module._forward_pre_hooks)


def import_without_compiler(*libraries: str) -> None:
    """Import libraries without torch's compiler, which is a third of the time and which nothing here calls.

    torchvision's RoI align and timm's NaFlexViT each ask for one function of ``torch._dynamo`` while they are imported;
    those are stood in for. Should a later version want more, or the compiler be there already, nothing is done.
    """
    if "torch._dynamo" in sys.modules:
        return
    package, utils = ModuleType("torch._dynamo"), ModuleType("torch._dynamo.utils")
    vars(package).update(__path__=[], utils=utils, disable=_left_as_it_is)
    vars(utils).update(is_compile_supported=_is_compile_supported)
    standing_in = {module.__name__: module for module in (package, utils)}
    sys.modules.update(standing_in)
    try:
        with suppress(ImportError, AttributeError):
            for library in libraries:
                importlib.import_module(library)
    finally:
        for name in standing_in:
            del sys.modules[name]


def _left_as_it_is(function: Any = None, recursive: bool = True, **_about: object) -> Any:
    """Stand in for ``torch._dynamo.disable``: what nobody compiles need not be kept from it."""
    return function if function is not None else _left_as_it_is


def _is_compile_supported(device_type: str) -> bool:
    """Ask the compiler itself, now that somebody calls RoI align."""
    utils = importlib.import_module("torch._dynamo.utils")
    return bool(utils.is_compile_supported(device_type))


def without_source_paths(program: ExportedProgram) -> ExportedProgram:
    """Take from every node of ``program`` the lines of source that made it, which name folders; return it."""
    for module in program.graph_module.modules():
        if isinstance(module, GraphModule):
            for node in module.graph.nodes:
                node.meta.pop("stack_trace", None)
    return program
