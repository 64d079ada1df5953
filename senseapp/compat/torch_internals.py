"""Undocumented names of torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten
"""ATen's operations as overload packets. Which of them a module calls, and in which order their arguments come, are
torch's own business; :data:`ARGUMENTS` says what is relied on."""

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

ARGUMENTS: Mapping[Any, Mapping[int, str]] = {
    aten.convolution: {0: "input", 1: "weight", 6: "transposed"},
    aten.addmm: {1: "mat1", 2: "mat2"},
    aten.baddbmm: {1: "batch1", 2: "batch2"},
    aten.mkldnn_rnn_layer: {0: "input", 1: "weight0", 2: "weight1"},
    MULTI_HEAD_ATTENTION: {0: "query", 5: "qkv_weight", 7: "proj_weight"},
    ENCODER_LAYER: {0: "src", 3: "qkv_weight", 5: "proj_weight", 14: "ffn_weight_1", 16: "ffn_weight_2"},
    **{attention: {0: "query", 1: "key", 2: "value"} for attention in ATTENTIONS},
}
"""By operation, the arguments that :mod:`senseapp.layers.products` reads, by position."""


class OperationMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Shows each operation that runs inside to :meth:`saw`, below autograd, where modules and functionals look alike.

    ``TorchFunctionMode``, the documented kind, does not see what one operation is made of.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def saw(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], output: Any) -> None:
        """Take note of one operation that has run."""
        raise NotImplementedError

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        output = func(*args, **kwargs)
        self.saw(func, args, kwargs, output)
        return output


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


def has_forward_hooks(module: nn.Module) -> bool:
    """Tell whether somebody else's hooks run around the forward pass of ``module``."""
    return bool(module._forward_hooks or module._forward_pre_hooks)
