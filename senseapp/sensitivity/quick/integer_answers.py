"""What convolutions answer to changes of their weights, multiplied as 8-bit integers.

Many processors multiply 8-bit integers four times as fast as float32 numbers. The answer to a change ΔW of the weight,
ΔW * x, is all that an estimate needs of a compressed layer, so ΔW and the input x are rounded rather than the weights
and outputs of the layer: the error is a share of what the compression does, however little that is. Rounding x in
steps of s adds noise of s / √12 at each position, and the inner products that are wanted of an answer err by about the
ratio of that to the root mean square of x; ΔW adds less, as each output channel has steps of its own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from senseapp.sensitivity.folding import norm_scale
from senseapp.sensitivity.quick.recorder import LayerCall
from senseapp.transforms.number_format import extremes_of

__all__ = ["RoundedChange", "RoundedInputs", "multiplies_integers", "rounded_inputs"]

_MOST_NOISE = 0.05  # of the inputs, as a share of their root mean square
_LEAST_MACS = 2**25  # in a call: below, rounding takes longer than it spares
_MOST_FACTORS = 2**16  # sums of so many products fit into 32 bits
_UNITS = ("avx512_vnni", "avx_vnni")


def multiplies_integers(device: torch.device) -> bool:
    """Return whether integers are much faster on ``device`` than float32 numbers."""
    if device.type != "cpu" or not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    able = torch.cpu.get_capabilities()
    return any(able.get(unit, False) for unit in _UNITS) and hasattr(torch.ops.onednn, "qconv2d_pointwise")


@dataclass(frozen=True, slots=True)
class RoundedInputs:
    """What a convolution took in: about ``step`` · (``values`` - ``zero``).

    Attributes:
        values: uint8, (N, C, H, W).
        step: more than 0.
        zero: what stands for 0.
    """

    values: Tensor
    step: float
    zero: int


def rounded_inputs(module: nn.Module, call: LayerCall) -> RoundedInputs | None:
    """Return what ``call`` took in; None where rounding does not pay or hurts, or for another kind of layer."""
    if not isinstance(module, nn.Conv2d) or not (_is_plain(module) and _takes_long(module, call)):
        return None
    data: Tensor = call.args[0]
    least, most = extremes_of(data)
    zero = 0 if least >= 0 else 128
    step = max(most, -least) / (255 - zero)
    spread = float(torch.linalg.vector_norm(data)) / math.sqrt(data.numel())
    if not 0 < step < math.inf or not step / math.sqrt(12) <= _MOST_NOISE * spread:
        return None
    counted = torch.add(torch.tensor(zero + 0.5), data, alpha=1 / step)  # conversion then cuts off what is over
    return RoundedInputs(counted.to(torch.uint8), step, zero)


def _is_plain(module: nn.Conv2d) -> bool:
    if type(module) is not nn.Conv2d or module._forward_hooks or module._forward_pre_hooks:
        return False
    padded = isinstance(module.padding, tuple) and module.padding_mode == "zeros"
    return padded and module.groups == 1 and module.weight[0].numel() <= _MOST_FACTORS


def _takes_long(module: nn.Conv2d, call: LayerCall) -> bool:
    if call.kwargs or len(call.args) != 1:
        return False
    data: Tensor = call.args[0]
    if data.dim() != 4 or data.dtype != torch.float32:
        return False
    return data.numel() * module.weight[:, 0].numel() >= _LEAST_MACS * math.prod(module.stride)


@dataclass(frozen=True, slots=True)
class RoundedChange:
    """A change of a convolution's weight, rounded in steps of each output channel's own."""

    _packed: Tensor
    _steps: Tensor  # (O,)
    _geometry: tuple[list[int], list[int], list[int], int]

    @classmethod
    def of(cls, module: nn.Conv2d, change: Tensor, norm: nn.BatchNorm2d | None) -> RoundedChange | None:
        """Return ``change``, (O, I, H, W), as ``norm`` after the module scales it; None if it is not finite."""
        steps = change.abs().amax(dim=(1, 2, 3)) / 127
        if not bool(steps.isfinite().all()):
            return None
        rounded = (change / steps.clamp_min(torch.finfo(steps.dtype).tiny)[:, None, None, None]).round_()
        assert isinstance(module.padding, tuple)
        geometry = (list(module.stride), list(module.padding), list(module.dilation), module.groups)
        packed = torch.ops.onednn.qconv_prepack(rounded.to(torch.int8), steps, 1.0, 0, *geometry)
        return cls(packed, steps if norm is None else steps * norm_scale(norm), geometry)

    def answer(self, inputs: RoundedInputs) -> Tensor:
        """Return what the convolution gives out more than before, float32 (N, O, H, W)."""
        answer: Tensor = torch.ops.onednn.qconv2d_pointwise(
            inputs.values,
            inputs.step,
            inputs.zero,
            self._packed,
            self._steps,
            torch.zeros(len(self._steps), dtype=torch.int64),
            None,  # no bias
            *self._geometry,
            1.0,
            0,
            torch.float32,
            "none",
            [],
            "",
        )
        return answer
