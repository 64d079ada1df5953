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
        "Det": torch.linalg.det,
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


def _lacks_of_attention(node: Node) -> str:
    windows = any(node.attributes.get(name, -1) >= 0 for name in ("left_window_size", "right_window_size"))
    if not (any(node.outputs[1:]) or any(node.inputs[4:]) or windows):
        return ""
    return (
        "only queries, keys, values and a mask are. Past and present keys, lengths of sequences and windows are not "
        "read. Export the network without a cache."
    )


@operator("Attention", lacks=_lacks_of_attention)
def _attention(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    mask: Tensor | None = None,
    *,
    scale: float = 0.0,
    softcap: float = 0.0,
    is_causal: bool = False,
    q_num_heads: int = 0,
    kv_num_heads: int = 0,
) -> Tensor:
    """Heads are the second axis, or (N, T, H D) with their number given; each of K heads of keys serves H / K."""
    if q_num_heads:
        queries = torch.unflatten(queries, -1, (q_num_heads, -1)).transpose(1, 2)  # (N, H, Q, D)
        keys, values = (torch.unflatten(each, -1, (kv_num_heads, -1)).transpose(1, 2) for each in (keys, values))
    served = queries.shape[1] // keys.shape[1]
    keys, values = (each.repeat_interleave(served, 1) if served > 1 else each for each in (keys, values))
    scores = torch.matmul(queries * (scale or 1 / math.sqrt(queries.shape[-1])), keys.transpose(-2, -1))
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    if is_causal:
        later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
        scores = scores.masked_fill(later, -math.inf)
    weights = torch.softmax(scores if mask is None else _masked(scores, mask), -1)
    if mask is not None:  # which may leave a row without keys
        weights = torch.where(weights.isnan(), 0, weights)
    result = torch.matmul(weights, values)
    return result.transpose(1, 2).flatten(2) if q_num_heads else result


def _masked(scores: Tensor, mask: Tensor) -> Tensor:
    """Add ``mask``, or leave what is True of it; keys behind its end are left out."""
    missing = scores.shape[-1] - mask.shape[-1] if mask.ndim and mask.shape[-1] > 1 else 0
    if mask.dtype == torch.bool:
        mask = F.pad(mask, (0, missing), value=False) if missing else mask
        return scores.masked_fill(torch.logical_not(mask), -math.inf)
    return scores + (F.pad(mask, (0, missing), value=-math.inf) if missing else mask)
