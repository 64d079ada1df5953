"""Undocumented names of timm (attention, reading of files) and torchvision (classes of images)."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import nn
from torchvision import datasets


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionTables:
    """Tables of an attention module with their head axis, and attributes whose value is the width of all heads."""

    tables: dict[str, int]
    widths: tuple[str, ...] = ()


HEAD_LAYOUTS = {
    "timm.layers.attention.Attention": AttentionTables(tables={}, widths=("attn_dim",)),
    "timm.models.swin_transformer.WindowAttention": AttentionTables(tables={"relative_position_bias_table": 1}),
}
"""Attention classes whose forward reads number and width of heads from the module, by full name."""


def head_layout(module: nn.Module) -> AttentionTables | None:
    """Return the per-head attributes of ``module``; None if its class is not known."""
    return HEAD_LAYOUTS.get(f"{type(module).__module__}.{type(module).__qualname__}")


def nothing_between(module: Any) -> bool:
    """Return whether no ``gate`` and no ``norm`` over heads precedes ``proj``, which would have to shrink too."""
    gate, norm = getattr(module, "gate", None), getattr(module, "norm", None)
    return gate is None and (norm is None or isinstance(norm, nn.Identity))


def weights_from(path: str) -> dict[str, Any]:
    """Return arguments of ``timm.create_model`` for published weights from this file."""
    return {"pretrained_cfg_overlay": {"file": path, "custom_load": False}}


def labels_of(images: Any) -> list[int]:
    """Return the class index of each image of an opened set, in order, without decoding any."""
    if isinstance(images, datasets.Imagenette):
        return [label for _, label in images._samples]
    if isinstance(images, datasets.Flowers102 | datasets.OxfordIIITPet):
        return list(images._labels)
    found: list[int] = np.asarray(images.labels if isinstance(images, datasets.SVHN) else images.targets).tolist()
    return found
