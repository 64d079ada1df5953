"""Directions in which the class scores are pulled, so that one backward pass measures KL for every layer."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["fisher_probe", "loss_gradient"]


def fisher_probe(logits: Tensor, generator: torch.Generator) -> Tensor:
    """Return a random upstream gradient whose outer product averages to the softmax's Fisher matrix.

    With p = softmax(z), the Fisher matrix of one image is F = diag(p) - p pᵀ = B Bᵀ for
    B = diag(√p) - p √pᵀ, so v = B ε with independent signs ε has E[v vᵀ] = F. For a small change δz of the
    logits, ½ E[(v·δz)²] = ½ δzᵀ F δz, the second-order term of KL(p ‖ p'). Compared with sampling one label, as
    the Fisher matrix is usually estimated, every class contributes at each image, so confident predictions,
    whose sampled label nearly always has no gradient, are not lost in the noise.

    Source: Martens (2020), New insights and perspectives on the natural gradient method, JMLR 21, section 9;
    Hutchinson (1990) for the random signs.

    Args:
        logits: (N, classes).
        generator: of the signs.

    Returns:
        (N, classes), float32.
    """
    root = logits.detach().float().softmax(dim=1).sqrt()  # (N, classes)
    signs = torch.randint(0, 2, root.shape, generator=generator).to(root) * 2 - 1
    pulled = root * signs
    return pulled - root.square() * pulled.sum(dim=1, keepdim=True)


def loss_gradient(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the gradient of each image's cross-entropy with respect to its logits, (N, classes)."""
    gradient = logits.detach().float().softmax(dim=1)
    gradient[torch.arange(len(labels)), labels] -= 1
    return gradient
