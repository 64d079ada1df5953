"""Directions in pixel scores whose gradients the quick scan follows, and the KL predicted from them."""

from __future__ import annotations

from torch import Tensor

from senseapp.metrics.segmentation import DIVERGENCE
from senseapp.tasks.base import RandomDirections


def choose_directions(scores: Tensor, signs: Tensor, most: int) -> RandomDirections:
    """Return ``most`` directions from class scores and random ``signs`` ±1, both (N, classes, H, W).

    To second order the divergence of one pixel is ½ δzᵀ F δz with F = diag(p) − p pᵀ, and F = B Bᵀ for
    B = diag(√p) − p √pᵀ. With independent random signs ε of each pixel and class, v = B ε has E[v vᵀ] = F for a pixel,
    and 0 for two pixels: so one inner product over all positions of an image, squared, estimates their sum. Signs of
    further directions are the same ones, turned around by rows and classes: any two differ at random.

    Source: Martens (2020), JMLR 21, section 9, for the Fisher matrix of a softmax; Hutchinson (1990) for the probe.
    """
    probability = scores.detach().float().softmax(1)
    root = probability.sqrt()
    vectors = []
    for index in range(most):
        signed = root * signs.roll((index, 7 * index), dims=(1, 3))
        vectors.append(signed - probability * signed.sum(1, keepdim=True))
    factor = 1 / (2 * scores[0, 0].numel())
    return RandomDirections(vectors=tuple(vectors), metric=DIVERGENCE.name, factor=factor)
