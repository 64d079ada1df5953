"""Trace of one forward pass: the order of module calls, the uses of each result and weight, and the data flow.

Events count starts and ends of module calls. A call that ends before event *e* can be skipped, and its kept output
returned instead, when only the computation from event *e* on is repeated.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from senseapp.compat.torch_internals import Identities, OperationMode, identity_of, storage_of, version_of, written_by
from senseapp.metrics.predictions import tensors_in
from senseapp.networks.products import DataFlow, Origins, Product, products_of
from senseapp.records.profile import FlowNode

NEVER = math.inf
EXAMPLE_IMAGES = 2  # of a traced pass: torch treats a batch of one as a fixed size


@dataclass(slots=True)
class Call:
    """One call of one module.

    Attributes:
        parent: index of the enclosing call; -1 for the outermost.
        start, end: events.
        after: index of the first call that is not inside this one and starts later.
        source: index of the innermost call whose output is its first argument; -1 if there is none.
        last_needed: the last event at which code that cannot be skipped by then reads the output.
        alone: whether its only argument is one tensor.
        passes_on: whether the output is the first argument itself.
        overwritten: whether later code writes into the output, so that replay must return copies.
        macs: multiply-accumulates in it and the calls inside it, for the whole traced batch.
        output_bytes: of the output's tensors, for the whole traced batch.
        input_shape, output_shape: of its first tensors, batch axis included; empty where there is none.
    """

    index: int
    module: str
    parent: int
    start: int
    end: float = NEVER
    after: int = 0
    source: int = -1
    last_needed: float = -1
    alone: bool = False
    passes_on: bool = False
    overwritten: bool = False
    macs: int = 0
    output_bytes: int = 0
    input_shape: tuple[int, ...] = ()
    output_shape: tuple[int, ...] = ()


@dataclass(slots=True)
class WeightUse:
    """How a forward pass uses one parameter: the first event that depends on it, and the innermost calls that read it.

    ``macs`` counts products with it or with values computed from it alone, for the whole batch; ``keeps_zeros`` is
    False if a zero of it is not a zero in the product's operand, as after a standardisation.
    """

    first_event: int
    macs: int = 0
    readers: set[int] = field(default_factory=set)
    keeps_zeros: bool = True


@dataclass(slots=True)
class CallTrace:
    """A traced forward pass.

    Attributes:
        calls: every module call, by start.
        uses: how parameters are used, by dotted name (the first name of tied ones).
        output: the model's output.
        batch_size: images in the pass.
        input_last_needed: the last event at which code that cannot be skipped by then reads the input.
        input_overwritten: whether the model writes into its input.
        other_macs: multiply-accumulates of two activations, by the module in whose own code they are.
        flow: the network as a graph of the modules that own the weights of products.
        used_by_others: parameters that other images use and the traced ones do not, with their multiply-accumulates for
            one image; see :meth:`add_uses`.
    """

    calls: list[Call]
    uses: dict[str, WeightUse]
    output: Any
    batch_size: int
    input_last_needed: float
    input_overwritten: bool
    other_macs: dict[str, int] = field(default_factory=dict)
    flow: tuple[FlowNode, ...] = ()
    used_by_others: dict[str, int] = field(default_factory=dict)

    @property
    def macs(self) -> int:
        """All multiply-accumulates, for the whole traced batch."""
        return sum(use.macs for use in self.uses.values()) + sum(self.other_macs.values())

    def first_event(self, module_names: frozenset[str]) -> int | None:
        """Return the first event that depends on one of these modules or their parameters; None if none does."""
        starts = [call.start for call in self.calls if call.module in module_names]
        used = [use.first_event for name, use in self.uses.items() if name.rpartition(".")[0] in module_names]
        return min(starts + used, default=None)

    def add_uses(self, further: Mapping[str, int]) -> None:
        """Add parameters that only other images use, with their multiply-accumulates for one image.

        The events of these uses are not known, so no call may be skipped for them.
        """
        for name, macs in further.items():
            self.uses[name] = WeightUse(first_event=0, macs=macs * self.batch_size)
        self.used_by_others |= further


def map_tensors(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Return ``value`` with each tensor of nested tuples, lists and dicts replaced by ``change(tensor)``."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(map_tensors(item, change) for item in value))
    if isinstance(value, (tuple, list)):
        return type(value)(map_tensors(item, change) for item in value)
    if isinstance(value, dict):
        return type(value)((key, map_tensors(item, change)) for key, item in value.items())
    return value


@contextmanager
def forward_replaced(module: nn.Module, forward: Callable[..., Any]) -> Iterator[None]:
    """Put ``forward`` in place of the module's own inside the block. Its hooks keep running, in ``__call__``."""
    previous = module.__dict__.get("forward")
    module.__dict__["forward"] = forward
    try:
        yield
    finally:
        if previous is None:
            module.__dict__.pop("forward", None)
        else:
            module.__dict__["forward"] = previous


@contextmanager
def wrapped_forwards(
    model: nn.Module, wrap: Callable[[str, nn.Module, Callable[..., Any]], Callable[..., Any]]
) -> Iterator[None]:
    """Put ``wrap(name, module, forward)`` in place of every module's forward; put the originals back on exit.

    Scripted modules cannot be wrapped and run as one.
    """
    with ExitStack() as stack:
        for name, module in list(model.named_modules()):
            if not isinstance(module, torch.jit.ScriptModule):
                stack.enter_context(forward_replaced(module, wrap(name, module, module.forward)))
        yield


@dataclass(slots=True)
class _Watcher:
    """State of a traced pass. Identities of tensors are held, not tensors, which would take the memory of them all."""

    calls: list[Call] = field(default_factory=list)
    stack: list[int] = field(default_factory=list)
    events: int = 0
    # By identity, with the tensor's version then: the calls that returned it, the innermost calls that read it.
    producers: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    readers: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    identities: Identities = field(default_factory=Identities)
    returned: dict[int, list[int]] = field(default_factory=dict)  # by storage: the calls that returned it
    uses: dict[str, WeightUse] = field(default_factory=dict)
    origins: Origins = field(default_factory=Origins)
    copies: dict[int, str] = field(default_factory=dict)  # by storage: the parameter of which it is a conversion
    other_macs: dict[str, int] = field(default_factory=dict)
    flow: DataFlow = field(default_factory=DataFlow)

    def wrap(self, name: str, _module: nn.Module, forward: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*args: Any, **kwargs: Any) -> Any:
            call = self._start(name, args)
            call.alone = len(args) == 1 and isinstance(args[0], Tensor) and not kwargs
            try:
                output = forward(*args, **kwargs)
            except BaseException:  # the model itself may catch it and continue
                self._close(call)
                raise
            self._end(call, output)
            return output

        return watched

    def _start(self, name: str, arguments: Any) -> Call:
        parent = self.stack[-1] if self.stack else -1
        shape = _first_shape(arguments)
        call = Call(index=len(self.calls), module=name, parent=parent, start=self.events, input_shape=shape)
        call.source = self._source(arguments)
        self.events += 1
        self.calls.append(call)
        self.stack.append(call.index)
        return call

    def _source(self, arguments: Any) -> int:
        first = next(tensors_in(arguments), None)
        calls = () if first is None else self.producers.get(identity_of(first), ())
        return next((index for index, version in calls if first is not None and version == version_of(first)), -1)

    def _close(self, call: Call) -> None:
        self.stack.pop()
        call.end = self.events
        call.after = len(self.calls)
        self.events += 1

    def _end(self, call: Call, output: Any) -> None:
        self._close(call)
        call.output_shape = _first_shape(output)
        call.passes_on = isinstance(output, Tensor) and call.source >= 0 and call.source == self._source(output)
        self.identities.hold(tensors_in(output))
        for tensor in tensors_in(output):
            self.producers.setdefault(identity_of(tensor), []).append((call.index, version_of(tensor)))
            self.returned.setdefault(storage_of(tensor), []).append(call.index)
            call.output_bytes += tensor.numel() * tensor.element_size()

    def saw(self, func: Any, arguments: tuple[Any, ...], keywords: Mapping[str, Any], output: Any) -> None:
        """Record one operation: its arguments are read inside the innermost call."""
        innermost = self.stack[-1] if self.stack else -1
        tensors = list(tensors_in((arguments, keywords)))
        results = list(tensors_in(output))
        self.identities.hold((*tensors, *results))
        for tensor in tensors_in(written_by(func, arguments, keywords)):
            for index in self.returned.get(storage_of(tensor), ()):
                self.calls[index].overwritten = True
        for tensor in tensors:
            self.readers.setdefault(identity_of(tensor), []).append((innermost, version_of(tensor)))
            name = self.origins.parameter_of(tensor) or self.copies.get(storage_of(tensor))
            if name is not None:
                self.uses.setdefault(name, WeightUse(first_event=self.events)).readers.add(innermost)
                if len(tensors) == 1 and results and results[0].numel() == tensor.numel():
                    self.copies.setdefault(storage_of(results[0]), name)  # its reads are reads of the parameter
        products = products_of(func, arguments, output)
        for index in self.stack:
            self.calls[index].macs += sum(product.macs for product in products)
        owners = [name.rpartition(".")[0] for product in products for name in self._count(product, innermost)]
        self.flow.follow(func.overloadpacket.__name__, owners, tensors, results)
        self.origins.follow(func, tensors, results, product=bool(products))

    def _count(self, product: Product, innermost: int) -> Iterable[str]:
        """Assign a product to the parameters of its weight operand, at best one used directly; return their names."""
        found = [origin for tensor in product.weights if (origin := self.origins.of(tensor)) is not None]
        origin = next((each for each in found if each.direct), found[0] if found else None)
        if origin is None:
            module = self.calls[innermost].module if innermost >= 0 else ""
            self.other_macs[module] = self.other_macs.get(module, 0) + product.macs
            return ()
        for name, share in origin.shares.items():
            use = self.uses.setdefault(name, WeightUse(first_event=self.events))
            use.macs += round(product.macs * share)
            use.keeps_zeros &= origin.keeps_zeros
        return origin.shares


def _first_shape(value: Any) -> tuple[int, ...]:
    return tuple(next((tensor.shape for tensor in tensors_in(value)), ()))


def _watcher_of(model: nn.Module, inputs: Any) -> _Watcher:
    watcher = _Watcher()
    for name, parameter in model.named_parameters():
        watcher.origins.add_parameter(name, parameter)
    for tensor in tensors_in(inputs):
        watcher.origins.add_input(tensor)
        watcher.flow.add_input(tensor)
    return watcher


@contextmanager
def uses_watched(model: nn.Module, inputs: Any) -> Iterator[dict[str, WeightUse]]:
    """Yield the uses of parameters of ``model`` inside the block, which runs it on ``inputs``; filled meanwhile."""
    watcher = _watcher_of(model, inputs)
    with OperationMode(watcher.saw):
        yield watcher.uses


def called(model: nn.Module, inputs: Any) -> Any:
    """Call ``model`` on one tensor, on the members of a tuple or list, or by the names of a mapping."""
    if isinstance(inputs, Mapping):
        return model(**inputs)
    return model(*inputs) if isinstance(inputs, tuple | list) else model(inputs)


def trace_calls(model: nn.Module, inputs: Any) -> CallTrace:
    """Run ``model`` once on ``inputs``, (N, C, H, W) or several as :func:`called` takes them; return its trace.

    The model gets a copy of ``inputs``, in case it writes into them. The pass runs under ``no_grad`` rather than
    ``inference_mode``, whose tensors have no version counter and so cannot show in-place writes.
    """
    inputs = map_tensors(inputs, torch.clone)
    versions = [(tensor, version_of(tensor)) for tensor in tensors_in(inputs)]
    watcher = _watcher_of(model, inputs)
    with torch.no_grad(), wrapped_forwards(model, watcher.wrap), OperationMode(watcher.saw):
        output = called(model, inputs)
    for tensor in tensors_in(output):  # the caller reads the model's output
        watcher.readers.setdefault(identity_of(tensor), []).append((-1, version_of(tensor)))
    _settle_needs(watcher)
    return CallTrace(
        calls=watcher.calls,
        uses=watcher.uses,
        output=output,
        batch_size=len(versions[0][0]),
        input_last_needed=max(
            (
                _end(watcher, reader)
                for tensor, _ in versions
                for reader, _ in watcher.readers.get(identity_of(tensor), ())
            ),
            default=-1,
        ),
        input_overwritten=any(version_of(tensor) != version for tensor, version in versions),
        other_macs=watcher.other_macs,
        flow=tuple(watcher.flow.nodes),
    )


def _settle_needs(watcher: _Watcher) -> None:
    """Set the event until which each call's output is needed: the end of the latest-ending call that reads it.

    A module that works in place returns its argument in a newer version. Later reads are reads of its output; the older
    version is not needed any more. (Code that reads the older name gets the newer values. Replay would return the older
    ones; the check of replay detects that.)
    """
    for identity, producers in watcher.producers.items():
        for reader, version in watcher.readers.get(identity, ()):
            newest = max((written for _, written in producers if written <= version), default=None)
            for index, written in producers:
                if written == newest:
                    call = watcher.calls[index]
                    call.last_needed = max(call.last_needed, _end(watcher, reader))


def _end(watcher: _Watcher, reader: int) -> float:
    """Return the event until which ``reader`` needs its inputs; the model's own code, and its caller, never end."""
    return watcher.calls[reader].end if reader > 0 else NEVER
