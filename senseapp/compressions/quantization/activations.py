"""Ranges of activations with a fixed amount of state, and hooks that observe or change the inputs of a layer."""

import math
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from senseapp.compat.torch_internals import UnreadableTensor
from senseapp.compressions.quantization import ActivationObserver
from senseapp.compressions.quantization.grid import extremes_of, in_memory_order
from senseapp.networks.trace import called, map_tensors

Rounding: TypeAlias = Callable[[Tensor, float, float], Tensor]

NUM_BINS = 2048  # as torch.ao's HistogramObserver; a range is known to a two-thousandth
# Candidate ends of a range, as shares of the full one: 80 steps of 9 %, down to a thousandth.
_SHARES = tuple(2.0 ** (-step / 8) for step in range(80))
# histc counts in float32, which stops counting at 2**24.
_CHUNK = 2**23


class MinMaxObserver:
    """Records the smallest and the largest value of tensors as the range for quantization."""

    def __init__(self) -> None:
        self._low, self._high = math.inf, -math.inf
        self._finite = True

    def update(self, values: Tensor) -> None:
        """Update the extremes with ``values``, any shape, which are not stored."""
        low, high = extremes_of(values)
        self._finite = self._finite and math.isfinite(high - low)
        self._low, self._high = min(self._low, low), max(self._high, high)

    @property
    def extremes(self) -> tuple[float, float] | None:
        """Smallest and largest value; None before any value, or after a non-finite one."""
        return (self._low, self._high) if self._finite and self._low <= self._high else None

    def value_range(self, rounding: Rounding) -> tuple[float, float] | None:
        """Return both ends, None without finite values; ``rounding`` quantizes (values, low, high)."""
        return self.extremes


class HistogramObserver(MinMaxObserver):
    """Histogram with a fixed number of bins, over a range that doubles when a value falls outside.

    ``counts``, float64 (NUM_BINS,), then stay exact, since neighbouring bins are added; ``low`` and ``high`` enclose
    every finite value seen.
    """

    def __init__(self) -> None:
        super().__init__()
        self.counts = torch.zeros(NUM_BINS, dtype=torch.float64)
        self.low, self.high = 0.0, 0.0

    def update(self, values: Tensor) -> None:
        """Count ``values``, any shape."""
        flat = in_memory_order(values.detach().float())
        super().update(flat)
        if self.extremes is None:
            return
        low, high = self.extremes
        if self.low == self.high:
            # A narrow range above a constant, so that later values get fine bins.
            self.low, self.high = low, max(high, low + max(abs(low), 1e-12) * 2**-10)
        self._widen_to(low, high)
        for start in range(0, len(flat), _CHUNK):
            counts = torch.histc(flat[start : start + _CHUNK], NUM_BINS, self.low, self.high)
            self.counts += counts.double().cpu()

    def _widen_to(self, low: float, high: float) -> None:
        while low < self.low or high > self.high:
            halves = torch.zeros_like(self.counts)
            merged = self.counts.view(-1, 2).sum(dim=1)
            if low < self.low:
                halves[NUM_BINS // 2 :] = merged
                self.low -= self.high - self.low
            else:
                halves[: NUM_BINS // 2] = merged
                self.high += self.high - self.low
            self.counts = halves

    @property
    def centres(self) -> Tensor:
        """Middle of each bin, float32 (NUM_BINS,)."""
        width = (self.high - self.low) / NUM_BINS
        return (self.low + width * (torch.arange(NUM_BINS, dtype=torch.float64) + 0.5)).float()


class PercentileObserver(HistogramObserver):
    """The range that holds 99.99 % of the values, half of the rest cut off at each end.

    Source: Wu et al. 2020, "Integer Quantization for Deep Learning Inference", who compare several percentiles.
    """

    def value_range(self, rounding: Rounding) -> tuple[float, float] | None:
        """Return the two quantiles, interpolated inside their bins."""
        if (extremes := self.extremes) is None:
            return None
        tail = (1 - 99.99 / 100) / 2
        return max(self._quantile(tail), extremes[0]), min(self._quantile(1 - tail), extremes[1])

    def _quantile(self, share: float) -> float:
        cumulative = self.counts.cumsum(0) / self.counts.sum()
        index = min(int(torch.searchsorted(cumulative, share)), NUM_BINS - 1)
        before = float(cumulative[index - 1]) if index else 0.0
        inside = (share - before) / (float(cumulative[index]) - before)
        return self.low + (self.high - self.low) / NUM_BINS * (index + inside)


class SearchingObserver(HistogramObserver):
    """The range with the least rounding error of the histogram; each end in turn is searched inwards."""

    def value_range(self, rounding: Rounding) -> tuple[float, float] | None:
        """Return the best range found; the full one is among the candidates."""
        if (extremes := self.extremes) is None:
            return None
        full_low, full_high = low, high = min(extremes[0], 0.0), max(extremes[1], 0.0)
        centres = self.centres.clamp(full_low, full_high)

        @cache  # a range that begins at 0, as after a ReLU, is searched at one end only
        def harm(ends: tuple[float, float]) -> float:
            return self.harm(centres, rounding(centres, *ends), ends)

        for _ in range(2):  # each end is searched again once the other has moved
            low, high = min(((low, share * full_high) for share in _SHARES), key=harm)
            low, high = min(((share * full_low, high) for share in _SHARES), key=harm)
        return low, high

    @abstractmethod
    def harm(self, centres: Tensor, rounded: Tensor, ends: tuple[float, float]) -> float:
        """Return the objective to minimise: ``centres`` of bins (NUM_BINS,) are rounded to ``rounded``."""


class MseObserver(SearchingObserver):
    """The range with the least squared rounding error."""

    def harm(self, centres: Tensor, rounded: Tensor, ends: tuple[float, float]) -> float:
        """Return the sum of squared errors."""
        return float((self.counts * (rounded - centres).double().square()).sum())


class EntropyObserver(SearchingObserver):
    """The range whose histogram loses the least information (Migacz 2017, "8-bit inference with TensorRT").

    It minimises KL(P‖Q), where P is the histogram with clipped values counted in the outermost bins, and Q the
    histogram without them, spread evenly over the non-empty bins of each step. The bin of 0, which activations often
    have and every range represents exactly, counts no more than the bins beside it.
    """

    @property
    def _without_zeros(self) -> Tensor:
        counts, zero = self.counts.clone(), int(-self.low / (self.high - self.low) * NUM_BINS)
        if 0 <= zero < NUM_BINS:
            beside = [counts[place] for place in (zero - 1, zero + 1) if 0 <= place < NUM_BINS]
            counts[zero] = counts[zero].minimum(max(beside))
        return counts

    def harm(self, centres: Tensor, rounded: Tensor, ends: tuple[float, float]) -> float:
        """Return KL(P‖Q) in nats; infinite for an empty range."""
        inside, counts = (centres >= ends[0]) & (centres <= ends[1]), self._without_zeros
        kept = counts[inside]
        if not kept.numel() or float(kept.sum()) == 0:
            return math.inf
        exact = kept.clone()
        first = int(inside.nonzero()[0])
        exact[0] += counts[:first].sum()
        exact[-1] += counts[first + len(kept) :].sum()
        _, step = torch.unique_consecutive(rounded[inside], return_inverse=True)
        filled = (kept > 0).double()
        sums, bins = (torch.zeros_like(kept).index_add_(0, step, each) for each in (kept, filled))
        spread = filled * (sums / bins.clamp_min(1.0))[step]
        shares, told = exact / exact.sum(), (spread / spread.sum()).clamp_min(1e-9)  # empty bins cost much
        return float(torch.special.xlogy(shares, shares / told).sum())


OBSERVERS: Mapping[ActivationObserver, Callable[[], MinMaxObserver]] = {
    "minmax": MinMaxObserver,
    "percentile": PercentileObserver,
    "mse": MseObserver,
    "entropy": EntropyObserver,
}


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
    """Apply ``change`` to the activations among a call's arguments, once to a tensor that is passed several times."""
    arguments: dict[int | str, Any] = dict(enumerate(args))
    arguments.update(kwargs)
    done: dict[int, Tensor] = {}
    for slot in _input_slots(module, args, kwargs):
        value = arguments[slot]
        if id(value) not in done:  # a call that replay skips may get a tensor without storage
            done[id(value)] = value if isinstance(value, UnreadableTensor) else change(value)
        arguments[slot] = done[id(value)]
    return tuple(arguments[place] for place in range(len(args))), {name: arguments[name] for name in kwargs}


@contextmanager
def changed_inputs(module: nn.Module, change: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """Apply ``change`` to the input of each call of ``module`` inside the block; of attention, to query, key, value."""

    def before(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Arguments:
        return _map_inputs(module, args, kwargs, change)

    with module.register_forward_pre_hook(before, with_kwargs=True):
        yield


def watched(module: nn.Module, observe: Callable[[tuple[Tensor, ...]], None]) -> RemovableHandle:
    """Call ``observe`` with the inputs of each call, (input,), or attention's (query, key, value); a context."""

    def before(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        slots = _input_slots(module, args, kwargs)
        observe(tuple(args[slot] if isinstance(slot, int) else kwargs[slot] for slot in slots))

    return module.register_forward_pre_hook(before, with_kwargs=True)


def observe_inputs(
    model: nn.Module,
    observers: Sequence[tuple[nn.Module, Callable[[tuple[Tensor, ...]], None]]],
    batches: Sequence[Tensor],
) -> None:
    """Pass each module's inputs to its observer, in one run of ``model`` over ``batches``; none are kept.

    A batch is an argument of :func:`called`, usually (N, C, H, W). An observer gets the inputs of one call: (input,),
    or (query, key, value) of an attention module. A module that is never called (``out_proj`` of
    ``nn.MultiheadAttention``, whose weight is read directly) has no inputs to observe.
    """
    first = next(model.parameters())

    def taken(tensor: Tensor) -> Tensor:  # a copy, as some models write into their input
        return tensor.to(first.device, first.dtype if tensor.is_floating_point() else tensor.dtype, copy=True)

    with ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        for module, observe in observers:
            stack.enter_context(watched(module, observe))
        for batch in batches:
            called(model, map_tensors(batch, taken))
