"""Products of computed tensors; those with a constant weight become layers (``layers.py``)."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from senseapp.networks.onnx.operators.registry import enter, operator
from senseapp.networks.onnx.torch_graph import Node

enter(
    {
        "MatMul": torch.matmul,
        "Einsum": lambda *tensors, equation="": torch.einsum(equation.replace(" ", ""), *tensors),
    }
)


@operator("Gemm")
def _gemm(
    a: Tensor,
    b: Tensor,
    c: Tensor | None = None,
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    transA: bool = False,  # noqa: N803  as the specification names it
    transB: bool = False,  # noqa: N803
) -> Tensor:
    product = alpha * torch.matmul(a.T if transA else a, b.T if transB else b)
    return product if c is None else product + beta * c


def _lacks(node: Node) -> str:
    at = node.attributes
    windows = any(at.get(name, -1) >= 0 for name in ("left_window_size", "right_window_size"))
    if not (any(node.outputs[1:]) or any(node.inputs[4:]) or windows or at.get("softcap")):
        return ""
    return (
        "only queries, keys, values and a mask are. Past and present keys, lengths of sequences, windows and caps are "
        "not read. Export the network without a cache."
    )


@operator("Attention", lacks=_lacks)
def _attention(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    mask: Tensor | None = None,
    *,
    scale: float = 0.0,
    is_causal: bool = False,
    q_num_heads: int = 0,
    kv_num_heads: int = 0,
) -> Tensor:
    """Heads are the second axis, or (N, T, H D) with their number given; each of K heads of keys serves H / K."""
    if q_num_heads:
        queries = torch.unflatten(queries, -1, (q_num_heads, -1)).transpose(1, 2)  # (N, H, Q, D)
        keys, values = (torch.unflatten(each, -1, (kv_num_heads, -1)).transpose(1, 2) for each in (keys, values))
    if mask is not None and is_causal:  # torch takes one of the two
        later = torch.ones(mask.shape[-2:], dtype=torch.bool, device=mask.device).triu(1)
        mask = mask.masked_fill(later, False if mask.dtype == torch.bool else -math.inf)
    result = F.scaled_dot_product_attention(
        queries,
        keys,
        values,
        attn_mask=mask,
        is_causal=is_causal and mask is None,
        scale=scale or None,
        enable_gqa=queries.shape[1] != keys.shape[1],
    )
    return result.transpose(1, 2).flatten(2) if q_num_heads else result
