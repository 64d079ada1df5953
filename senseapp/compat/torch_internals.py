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
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_unflatten

aten = torch.ops.aten
"""ATen's operations as overload packets. torch does not document which of them a module calls, or the order of their
arguments; ``tests/unit/compat/test_compat.py`` lists the arguments that :mod:`senseapp.networks.products` reads."""

ATTENTIONS = (
    aten._scaled_dot_product_flash_attention_for_cpu,
    aten._scaled_dot_product_flash_attention,
    aten._scaled_dot_product_efficient_attention,
    aten._scaled_dot_product_cudnn_attention,
    aten._scaled_dot_product_fused_attention_overrideable,
)
"""Implementations of ``scaled_dot_product_attention`` by device: each counts as two matrix products."""

MULTI_HEAD_ATTENTION = aten._native_multi_head_attention
"""The fused kernel of ``nn.MultiheadAttention`` in evaluation: its products are counted."""

ENCODER_LAYER = aten._transformer_encoder_layer_fwd
"""The fused kernel of ``nn.TransformerEncoderLayer`` in evaluation: its products are counted."""

WEIGHT_NORM = aten._weight_norm_interface
"""The kernel of weight normalisation, after which a zero of the weight is still a zero."""

COPIES = (aten._to_copy, aten._unsafe_view)
"""Implementations of casts and reshapes, which do not change values."""


@contextmanager
def without_stack_traces() -> Iterator[None]:
    """Trace graphs inside the block without source lines of nodes, which have paths: a third of an export's time."""
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
    """Make in-place activations of a traced graph return new tensors, where nothing else reads the overwritten ones.

    For ONNX, torch decomposes ``hardtanh_`` into operations on symbolic sizes: half the time of an export.
    """
    for node in program.graph.nodes:
        other = _OUT_OF_PLACE.get(node.target) if node.op == "call_function" else None
        if other is not None and len(node.args[0].users) == 1 and _is_fresh(node.args[0]):
            node.target = other
    program.graph_module.recompile()


def nested_outputs(program: ExportedProgram) -> Any:
    """Return the output of a traced network, nested as it is, with tensors replaced by their position."""
    places = iter(range(len(program.graph_signature.user_outputs)))
    leaves = [None if name is None else next(places) for name in program.graph_signature.user_outputs]
    return tree_unflatten(leaves, program.call_spec.out_spec)


def _is_fresh(node: Any) -> bool:
    """Return whether an operation of a traced graph returns new tensors that share no memory with its inputs."""
    schema = getattr(node.target, "_schema", None)
    return schema is not None and all(each.alias_info is None for each in schema.returns)


def written_by(operation: Any, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> list[Any]:
    """Return those arguments of an operation that it writes into: tensors, or lists of them."""
    if not operation._schema.is_mutable:
        return []
    named = dict(zip((each.name for each in operation._schema.arguments), arguments, strict=False)) | dict(keywords)
    written = {each.name for each in operation._schema.arguments if each.alias_info and each.alias_info.is_write}
    return [value for name, value in named.items() if name in written]


class OperationMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Calls ``saw`` for each operation inside the block, below autograd, where modules and functionals look alike.

    ``TorchFunctionMode``, the documented kind, does not show the operations inside a composite one.
    """

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()  # type: ignore[no-untyped-call]

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """False, which keeps torch from loading its compiler (2 s) at the first operation; nothing here is compiled."""
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
    """Has the shape, strides, type and device of a tensor and no storage; any operation on its values raises.

    Composite operations, such as ``to`` and ``dropout``, are decomposed first: those that do nothing return it
    unchanged, as for any tensor.
    """

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]
    error: Callable[[], BaseException]

    @staticmethod
    def like(tensor: Tensor, error: Callable[[], BaseException]) -> UnreadableTensor:
        """Return one like ``tensor``; reading it raises the result of ``error``."""
        made: UnreadableTensor = Tensor._make_wrapper_subclass(
            UnreadableTensor, tensor.shape, strides=tensor.stride(), dtype=tensor.dtype, device=tensor.device
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
    """Return the packet in :data:`aten` of an overload seen by :class:`OperationMode`; None if there is none."""
    return getattr(func, "overloadpacket", None)


def version_of(tensor: Tensor) -> int:
    """Return the number of in-place writes to ``tensor``, from autograd's counter; inference tensors have none."""
    return tensor._version


def storage_of(tensor: Tensor) -> int:
    """Return a number shared by all views of one tensor, also on the ``meta`` device, which has no addresses."""
    return int(tensor.untyped_storage()._cdata)


def identity_of(tensor: Tensor) -> int:
    """Return a number of this very tensor; its views have others."""
    return int(tensor._cdata)


class Identities:
    """Keeps the numbers of tensors and storages from being given to later ones, while their memory is freed.

    A weak reference of torch keeps the few bytes that a number is the address of, not the values.
    """

    def __init__(self) -> None:
        self._held: dict[int, Any] = {}

    def hold(self, tensors: Iterable[Tensor]) -> None:
        """Keep :func:`identity_of` and :func:`storage_of` of these tensors unique for as long as this object lives."""
        for tensor in tensors:
            if tensor._cdata not in self._held:
                self._held[tensor._cdata] = torch._C._WeakTensorRef(tensor)  # type: ignore[attr-defined]
            storage = tensor.untyped_storage()
            if storage._cdata not in self._held:
                self._held[storage._cdata] = StorageWeakRef(storage)  # type: ignore[no-untyped-call]


_ABSENT = object()


@contextmanager
def restored(modules: Iterable[nn.Module]) -> Iterator[list[str]]:
    """Undo the body's changes to the attributes of ``modules`` on exit, also on error; yield a list of their names.

    The list is filled on exit.

    Pruning sets new parameters and sizes and never writes to the old tensors, so the old objects are restored and
    nothing is copied; so are entries of dictionaries, in which some modules cache values computed from their weights.
    Children, hooks and training flags are not restored, as other code may depend on them.
    """
    saved = [(table, dict(table)) for module in dict.fromkeys(modules) for table in _tables(module)]
    changed: list[str] = []
    try:
        yield changed
    finally:
        for table, before in saved:
            for name in table.keys() - before.keys():
                del table[name]
                changed.append(str(name))
            for name, value in before.items():
                if name != "training" and table.get(name, _ABSENT) is not value:  # only what differs
                    table[name] = value
                    changed.append(str(name))


def _tables(module: nn.Module) -> list[dict[str, Any]]:
    """Return the dictionaries of a module's own state: attributes, parameters, buffers, and its own dictionaries."""
    attributes = vars(module)
    own = [value for name, value in attributes.items() if isinstance(value, dict) and not name.startswith("_")]
    return [attributes, attributes["_parameters"], attributes["_buffers"], *own]


def has_forward_hooks(module: nn.Module) -> bool:
    """Return whether forward hooks of other code are registered on ``module``."""
    return bool(module._forward_hooks or module._forward_pre_hooks)


def import_without_compiler(*libraries: str) -> None:
    """Import libraries without torch's compiler, which is a third of the time and is never used here.

    torchvision's RoI align and timm's NaFlexViT each use one function of ``torch._dynamo`` while they are imported;
    these are replaced. If a later version needs more, or the compiler is loaded already, nothing is done.
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
    """Replacement of ``torch._dynamo.disable`` that returns the function unchanged, as nothing is compiled."""
    return function if function is not None else _left_as_it_is


def _is_compile_supported(device_type: str) -> bool:
    """Ask the compiler itself, once RoI align is called."""
    return bool(importlib.import_module("torch._dynamo.utils").is_compile_supported(device_type))
