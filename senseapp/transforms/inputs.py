"""Looking at, and replacing, what flows into a layer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

_Arguments: TypeAlias = tuple[tuple[Any, ...], dict[str, Any]]
_ATTENTION_INPUTS = ("query", "key", "value")


def _input_slots(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[int | str]:
    """Return the positions or keywords of a call's activations: query, key and value, or the one input."""
    if isinstance(module, nn.MultiheadAttention):
        return [place if place < len(args) else name for place, name in enumerate(_ATTENTION_INPUTS)]
    return [0 if args else next(iter(kwargs))]


def _map_inputs(
    module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], change: Callable[[Tensor], Tensor]
) -> _Arguments:
    """Apply ``change`` to the activations among a call's arguments, once to each tensor.

    Self-attention passes one tensor three times, and torch takes a faster path when it can see that.
    """
    arguments: dict[int | str, Any] = dict(enumerate(args))
    arguments.update(kwargs)
    done: dict[int, Tensor] = {}
    for slot in _input_slots(module, args, kwargs):
        value = arguments[slot]
        if id(value) not in done:
            done[id(value)] = change(value)
        arguments[slot] = done[id(value)]
    return tuple(arguments[place] for place in range(len(args))), {name: arguments[name] for name in kwargs}


@contextmanager
def _called_first(module: nn.Module, before: Callable[..., _Arguments | None]) -> Iterator[None]:
    handle = module.register_forward_pre_hook(before, with_kwargs=True)
    try:
        yield
    finally:
        handle.remove()


@contextmanager
def changed_inputs(module: nn.Module, change: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """Pass the input of each call of ``module`` through ``change`` first; of attention, query, key and value."""

    def before(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Arguments:
        return _map_inputs(module, args, kwargs, change)

    with _called_first(module, before):
        yield


@contextmanager
def _watched(module: nn.Module, observe: Callable[[tuple[Tensor, ...]], None]) -> Iterator[None]:
    def before(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        slots = _input_slots(module, args, kwargs)
        observe(tuple(args[slot] if isinstance(slot, int) else kwargs[slot] for slot in slots))

    with _called_first(module, before):
        yield


def observe_inputs(
    model: nn.Module,
    observers: Sequence[tuple[nn.Module, Callable[[tuple[Tensor, ...]], None]]],
    batches: Sequence[Tensor],
) -> None:
    """Run ``model`` over ``batches`` (N, C, H, W) once, showing each module's inputs to its observer.

    An observer gets the inputs of one call: (input,), or (query, key, value) of an attention module. It must not
    keep them. A module that is never called (``out_proj`` of ``nn.MultiheadAttention``, whose weight is read
    directly) shows nothing.
    """
    first = next(model.parameters())
    with ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        for module, observe in observers:
            stack.enter_context(_watched(module, observe))
        for batch in batches:
            model(batch.to(first.device, first.dtype, copy=True))  # some models write into their input
