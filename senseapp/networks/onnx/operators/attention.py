"""Steps that attention is made of where a file has it in one node (``compound.py``), and rotary embeddings.

The first four are not of ONNX. Heads are the second axis: queries (N, H, Q, D), keys and values (N, K, T, D), where
each of K heads of keys serves H / K heads of queries.
"""

from __future__ import annotations

import math
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from senseapp.networks.onnx.operators.registry import Attributes, FormNotRead, Function, operator


@operator("AttentionScores")
def _make_scores(at: Attributes) -> Function:
    scale = at.number("scale", 0.0) if at.has("scale") else None
    return partial(_scores, scale=scale, cap=at.number("softcap", 0.0), causal=bool(at.whole("is_causal", 0)))


def _scores(queries: Tensor, keys: Tensor, *, scale: float | None, cap: float, causal: bool) -> Tensor:
    queries = queries * (1 / math.sqrt(queries.shape[-1]) if scale is None else scale)
    scores = torch.matmul(queries, _served(keys, queries.shape[1]).transpose(-2, -1))
    if cap:
        scores = cap * torch.tanh(scores / cap)
    if causal:
        later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
        scores = scores.masked_fill(later, -math.inf)
    return scores


def _served(each: Tensor, heads: int) -> Tensor:
    return each if each.shape[1] == heads else each.repeat_interleave(heads // each.shape[1], 1)


@operator("AttentionMask")
def _make_mask(_at: Attributes) -> Function:
    return _masked


def _masked(scores: Tensor, mask: Tensor) -> Tensor:
    """Add ``mask``, or leave what is True of it; keys behind its end are left out."""
    missing = scores.shape[-1] - mask.shape[-1] if mask.ndim and mask.shape[-1] > 1 else 0
    if mask.dtype == torch.bool:
        mask = F.pad(mask, (0, missing), value=False) if missing else mask
        return scores.masked_fill(torch.logical_not(mask), -math.inf)
    return scores + (F.pad(mask, (0, missing), value=-math.inf) if missing else mask)


@operator("AttentionSoftmax")
def _make_softmax(at: Attributes) -> Function:
    return partial(_softmax, axis=at.whole("axis", -1))


def _softmax(scores: Tensor, *, axis: int) -> Tensor:
    """Return weights over keys; none where a mask leaves no key."""
    weights = torch.softmax(scores, axis)
    return torch.where(weights.isnan(), torch.zeros_like(weights), weights)


@operator("AttentionValues")
def _make_values(_at: Attributes) -> Function:
    return _values


def _values(weights: Tensor, values: Tensor) -> Tensor:
    return torch.matmul(weights, _served(values, weights.shape[1]))


@operator("RotaryEmbedding")
def _make_rotary(at: Attributes) -> Function:
    return partial(
        _rotated,
        pairs=bool(at.whole("interleaved", 0)),
        width=at.whole("rotary_embedding_dim", 0),
        heads=at.whole("num_heads", 0),
    )


def _rotated(
    x: Tensor,
    cosines: Tensor,
    sines: Tensor,
    places: Tensor | None = None,
    *,
    pairs: bool,
    width: int,
    heads: int,
) -> Tensor:
    """Rotate the first ``width`` numbers of each head, as pairs of neighbours or of both halves."""
    if x.ndim == 3 and not heads:
        raise FormNotRead("it does not say how many heads its input has.")
    by_head = x if x.ndim == 4 else x.reshape(*x.shape[:2], heads, -1).transpose(1, 2)  # (N, H, T, D)
    if places is not None:
        cosines, sines = cosines[places], sines[places]
    cosines, sines = cosines.unsqueeze(1), sines.unsqueeze(1)  # (N, 1, T, D / 2)
    width = width or by_head.shape[-1]
    turning, rest = by_head[..., :width], by_head[..., width:]
    one, other = (turning[..., 0::2], turning[..., 1::2]) if pairs else turning.chunk(2, -1)
    turned = (one * cosines - other * sines, one * sines + other * cosines)
    found = torch.stack(turned, -1).flatten(-2) if pairs else torch.cat(turned, -1)
    found = torch.cat([found, rest], -1)
    return found if x.ndim == 4 else found.transpose(1, 2).flatten(2)
