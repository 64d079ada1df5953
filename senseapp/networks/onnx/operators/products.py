"""Products of two computed tensors, and the steps that attention is made of.

Products with a constant weight become layers (``layers.py``). The steps of attention (``rewrite/attention.py``) are not
of ONNX: heads are the second axis, queries are (N, H, Q, D), keys and values (N, K, T, D), where each of K heads of
keys serves H / K heads of queries.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from senseapp.networks.onnx.operators.registry import enter, operator

enter(
    {
        "MatMul": torch.matmul,
        "Det": torch.linalg.det,
        "Einsum": lambda *tensors, equation="": torch.einsum(equation.replace(" ", ""), *tensors),
        "AttentionValues": lambda weights, values: torch.matmul(weights, _served(values, weights.shape[1])),
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


@operator("AttentionScores")
def _scores(
    queries: Tensor, keys: Tensor, *, scale: float = 0.0, softcap: float = 0.0, is_causal: bool = False
) -> Tensor:
    queries = queries * (scale or 1 / math.sqrt(queries.shape[-1]))
    scores = torch.matmul(queries, _served(keys, queries.shape[1]).transpose(-2, -1))
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    if is_causal:
        later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
        scores = scores.masked_fill(later, -math.inf)
    return scores


def _served(each: Tensor, heads: int) -> Tensor:
    return each if each.shape[1] == heads else each.repeat_interleave(heads // each.shape[1], 1)


@operator("AttentionMask")
def _masked(scores: Tensor, mask: Tensor) -> Tensor:
    """Add ``mask``, or leave what is True of it; keys behind its end are left out."""
    missing = scores.shape[-1] - mask.shape[-1] if mask.ndim and mask.shape[-1] > 1 else 0
    if mask.dtype == torch.bool:
        mask = F.pad(mask, (0, missing), value=False) if missing else mask
        return scores.masked_fill(torch.logical_not(mask), -math.inf)
    return scores + (F.pad(mask, (0, missing), value=-math.inf) if missing else mask)


@operator("AttentionSoftmax")
def _softmax(scores: Tensor, *, axis: int = -1) -> Tensor:
    """Return weights over keys; none where a mask leaves no key."""
    weights = torch.softmax(scores, axis)
    return torch.where(weights.isnan(), torch.zeros_like(weights), weights)
