"""Products of two computed tensors. Those with a constant weight become layers (``layers.py``)."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from senseapp.networks.onnx.operators.registry import Attributes, Function, operator, plain


def _swapped(x: Tensor) -> Tensor:
    return x.transpose(-2, -1)  # not of ONNX: a factor that is read the other way round


plain({"MatMul": torch.matmul, "Det": torch.linalg.det, "SwapLast": _swapped})


@operator("Gemm")
def _make_gemm(at: Attributes) -> Function:
    return partial(
        _gemm,
        alpha=at.number("alpha", 1.0),
        beta=at.number("beta", 1.0),
        transpose_a=bool(at.whole("transA", 0)),
        transpose_b=bool(at.whole("transB", 0)),
    )


def _gemm(
    a: Tensor, b: Tensor, c: Tensor | None = None, *, alpha: float, beta: float, transpose_a: bool, transpose_b: bool
) -> Tensor:
    product = alpha * torch.matmul(a.T if transpose_a else a, b.T if transpose_b else b)
    return product if c is None else product + beta * c


@operator("Einsum")
def _make_einsum(at: Attributes) -> Function:
    return partial(_einsum, equation=at.text("equation", "").replace(" ", ""))


def _einsum(*tensors: Tensor, equation: str) -> Tensor:
    return torch.einsum(equation, *tensors)
