"""Undocumented names of timm: how its attention classes hold their heads, and how it is told to read a file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import nn


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadLayout:
    """Tables of an attention module with the axis that counts heads, and attributes that are the width of all heads."""

    tables: dict[str, int]
    widths: tuple[str, ...] = ()


HEAD_LAYOUTS = {
    "timm.layers.attention.Attention": HeadLayout(tables={}, widths=("attn_dim",)),
    "timm.models.swin_transformer.WindowAttention": HeadLayout(tables={"relative_position_bias_table": 1}),
}
"""Attention classes whose forward reads the number of heads and the width of a head from the module, by full name."""


def head_layout(module: nn.Module) -> HeadLayout | None:
    """Return what ``module`` holds per head; None if its class is not known."""
    return HEAD_LAYOUTS.get(f"{type(module).__module__}.{type(module).__qualname__}")


def nothing_between(module: Any) -> bool:
    """Tell whether no ``gate`` and no ``norm`` over heads lies before ``proj``, which would have to shrink too."""
    gate, norm = getattr(module, "gate", None), getattr(module, "norm", None)
    return gate is None and (norm is None or isinstance(norm, nn.Identity))


def weights_from(path: str) -> dict[str, Any]:
    """Return arguments of ``timm.create_model`` that make it read published weights from this file."""
    return {"pretrained_cfg_overlay": {"file": path, "custom_load": False}}
