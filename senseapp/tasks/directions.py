"""Directions in outputs whose gradients the quick scan follows, and the changes of metrics predicted from them."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from senseapp.metrics.detection import DIVERGENCE
from senseapp.metrics.detection.rows import BOX, CLASSES, OBJECT, SOFTMAX, RowKind, blocks
from senseapp.metrics.detection.rows import scores as scores_of_rows


class ScanDirections(Protocol):
    """A few directions v for each image: v·δz predicts the metrics of a small change δz of the output."""

    @property
    def vectors(self) -> Sequence[Tensor]:
        """Return one for each direction, like the output, float32."""

    def changes(self, products: Tensor) -> Mapping[str, Tensor]:
        """Return what each metric loses on each image, (N,), float64, from ``products`` = v·δz, (N, directions).

        The metrics are those whose moments are of a mean; the task's divergence must be among them.
        """


class PartedDirections(ScanDirections, Protocol):
    """Directions that predict a change better where it is known which parts of the output it reaches."""

    def reaching(self, places: Tensor) -> ScanDirections:
        """Return those of changes that reach only these ``places``, bool, shaped as the output of one image."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomDirections:
    """Random directions v for each image: a divergence is the mean of (v·δz)², times a factor.

    Source: Hutchinson (1990), Communications in Statistics 19.

    Attributes:
        vectors: like the output, float32.
        metric: name of the divergence.
        loss: name of a loss whose gradient is the first vector, and whose curvature is that of the divergence.
    """

    vectors: tuple[Tensor, ...]
    metric: str
    factor: float = 1.0
    loss: str = ""

    def changes(self, products: Tensor) -> Mapping[str, Tensor]:
        """Return the divergence of each image, and the change of the loss; see :class:`ScanDirections`."""
        divergence = self.factor * products[:, bool(self.loss) :].double().square().mean(1)
        return {self.metric: divergence} | ({self.loss: products[:, 0].double() + divergence} if self.loss else {})


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreDirections:
    """A few directions v for each image; knowing v·δz for a small change δz of the scores gives the KL.

    The classes of an image are split into k heads and the rest. KL obeys the chain rule: it is the KL between
    (head 1, …, head k, rest), plus the rest's mass times the KL within the rest. The first is computed exactly
    from how far each head's score moves against the rest's mean, so it saturates as the true KL does; the second
    from its second-order term ½ δzᵀ F δz, with one random probe v of E[v vᵀ] = F, the Fisher matrix within the rest.
    If the rest is a single class, nothing is random.

    Attributes:
        vectors: (N, classes) each, float32: one for each head, then the probe if the rest has several classes.
        log_masses: log probability of each head and of the rest, (N, k + 1), float64.
        labelled: whether the first heads are the labels.
    """

    vectors: tuple[Tensor, ...]
    log_masses: Tensor
    labelled: bool = False

    def changes(self, products: Tensor) -> dict[str, Tensor]:
        """Return KL in nats and, with labels, the change of the loss; see :class:`~senseapp.tasks.ScanDirections`."""
        before, num_heads = self.log_masses, self.log_masses.shape[1] - 1
        moves = F.pad(products[:, :num_heads].double(), (0, 1))  # (N, k + 1): the rest is the reference
        after = (before + moves).log_softmax(dim=1)
        divergence = (before.exp() * (before - after)).sum(dim=1).clamp_min(0)  # below 0 by rounding only
        for within_rest in products[:, num_heads:].unbind(dim=1):  # the probe, if there is one
            divergence = divergence + before[:, -1].exp() * within_rest.double().square() / 2
        return {"kl": divergence} | ({"loss": (before - after)[:, 0]} if self.labelled else {})


def fisher_probe(probabilities: Tensor, signs: Tensor, dim: int) -> Tensor:
    """Return v = B ε, B = diag(√p) − p √pᵀ, of the class ``probabilities`` p along ``dim`` and independent ``signs`` ε.

    B Bᵀ is the Fisher matrix F = diag(p) − p pᵀ of a softmax, so E[v vᵀ] = F, and E[(v·δz)²] / 2 is, to second order,
    the KL divergence of a small change δz of the logits.

    Source: Martens (2020), New insights and perspectives on the natural gradient method, JMLR 21, section 9, for KL's
    second-order term; Hutchinson (1990) for the probe.
    """
    signed = probabilities.sqrt() * signs
    return signed - probabilities * signed.sum(dim=dim, keepdim=True)


def choose_directions(logits: Tensor, labels: Tensor | None, signs: Tensor, most: int) -> ScoreDirections:
    """Return at most ``most`` directions for each image: its label, its most probable classes, and the rest's probe.

    Shapes: ``logits`` and ``signs`` (±1) are (N, classes), ``labels`` (N,); see :meth:`senseapp.tasks.Task.directions`.
    """
    scores = logits.detach().double().log_softmax(dim=1)  # (N, classes)
    classes = scores.shape[1]
    num_heads = classes - 1 if most >= classes - 1 else most - 1
    order = scores if labels is None else scores.scatter(1, labels[:, None], torch.inf)
    heads = order.topk(num_heads, dim=1).indices  # (N, k)
    rest = scores.scatter(1, heads, -torch.inf)
    rest_mass = rest.logsumexp(dim=1, keepdim=True)
    weights = (rest - rest_mass).exp()  # the distribution within the rest, 0 at the heads
    vectors = [F.one_hot(head, classes) - weights for head in heads.unbind(dim=1)]
    if num_heads < classes - 1:
        vectors.append(fisher_probe(weights, signs, dim=1))
    return ScoreDirections(
        vectors=tuple(vector.float() for vector in vectors),
        log_masses=torch.cat([scores.gather(1, heads), rest_mass], dim=1),
        labelled=labels is not None,
    )


def largest_divergence(logits: Tensor) -> Tensor:
    """Return the KL of each image's answer to the surest answer of all, given to the wrong classes, (N,), float64.

    It bounds the KL to any order of these scores, by the rearrangement inequality, so a compressed network goes beyond
    it only where it is surer than the uncompressed one ever was on these images. ``logits`` are (N, classes).
    """
    scores = logits.detach().double().log_softmax(dim=1).sort(dim=1, descending=True).values
    surest = scores[scores[:, -1].argmin()].flip(0)
    own = (scores.exp() * (scores - scores.flip(1))).sum(dim=1)
    return torch.maximum(own, (scores.exp() * (scores - surest)).sum(dim=1))


_SHIFT_TO_OVERLAP = 1.6 * math.sqrt(math.pi / 2)
"""1 − IoU of a small shift, over the mean of |v·δz| that it gives, for four sides that move alike.

It is 1.6 times the root of the mean of |v·δz|², of which the mean of |v·δz|, a sum over many boxes, is √(2/π).
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class BoxDirections:
    """Directions of rows, (N, R, 6 + K), float32: of class logits, then of boxes.

    Attributes:
        weights: the scores of the boxes that change, (N, R), float64.
    """

    vectors: tuple[Tensor, ...]
    weights: Tensor

    def reaching(self, places: Tensor) -> Self:
        """Return those of changes that reach the boxes of some rows only: of the head of one feature map, for example.

        With the scores of all other boxes, the loss would be several times too large.
        """
        return replace(self, weights=self.weights * places[..., BOX].any(dim=-1))

    def changes(self, products: Tensor) -> Mapping[str, Tensor]:
        """Return the divergence of each image, (N,); see :class:`~senseapp.tasks.ScanDirections`."""
        classes = products[:, 0].double().square() / 2
        most = self.weights.sum(dim=1)  # what the box part loses if no box overlaps what it was
        shift = _SHIFT_TO_OVERLAP * most.sqrt() * products[:, 1].double().abs()
        return {DIVERGENCE.name: classes + most * shift / (most + shift).clamp_min(1e-12)}


def box_directions(rows: Tensor, signs: Tensor) -> BoxDirections:
    """Return two directions at ``rows``, (N, R, 6 + K), of the uncompressed model, from ``signs`` ±1 of that shape.

    The first is of class logits: v with E[v vᵀ] = F, the Fisher matrix of the class probabilities of each row, so that
    ½ (v·δz)² averages to the KL divergence of small changes, summed over rows before squaring. The second is of boxes:
    ±√score / size for each side, so that (v·δz)² averages to Σ score · |δ/size|². Because 1 − IoU grows with |δ/size|
    itself, the box part loses Σ score · |δ/size|, which by Cauchy and Schwarz is at most
    √(Σ score · Σ score · |δ/size|²), and so much where all boxes move alike.
    """
    classes, boxes = torch.zeros_like(rows), torch.zeros_like(rows)
    weights = rows.new_zeros(rows.shape[:2], dtype=torch.float64)
    for kind, place in blocks(rows):
        old, sign = rows[:, place], signs[:, place].to(rows.dtype)
        score = scores_of_rows(old, kind)
        weights[:, place] = score.double()
        if kind in SOFTMAX:
            classes[:, place, CLASSES] = fisher_probe(old[..., CLASSES].softmax(dim=-1), sign[..., CLASSES], dim=-1)
        else:
            used = slice(OBJECT, OBJECT + 1) if kind is RowKind.ANCHOR else slice(OBJECT, None)
            shares = old[..., used].sigmoid()
            classes[:, place, used] = (shares * (1 - shares)).sqrt() * sign[..., used]
        sides = (old[..., 2:4] - old[..., 0:2]).clamp_min(1.0).repeat(1, 1, 2)  # width, height, width, height
        boxes[:, place, BOX] = score.sqrt()[..., None] / sides * sign[..., BOX]
    return BoxDirections(vectors=(classes.float(), boxes.float()), weights=weights)


def directions_of_maps(rows: Tensor) -> tuple[Tensor, ...]:
    """Return ±1 at the boxes of each feature map, and 0 elsewhere, like ``rows``; none where there is one map.

    ``rows`` are (1, R, 6 + K).
    """
    maps = feature_maps(rows)
    if len(maps) == 1:
        return ()
    found = tuple(torch.zeros_like(rows) for _ in maps)
    for each, place in zip(found, maps, strict=True):
        sides = each[:, place, BOX]
        sides += torch.randint(0, 2, sides.shape, generator=torch.Generator().manual_seed(0)) * 2 - 1
    return found


def feature_maps(rows: Tensor) -> list[slice]:
    """Return the places of rows, (1, R, 6 + K), that come from one feature map each.

    Boxes of a map follow each other from its top to its bottom, and those of the next begin at its top again. Rows of
    one kind in any other order, as regions and queries have, count as one map.
    """
    found = []
    for _, place in blocks(rows):
        middle = (rows[0, place, 1] + rows[0, place, 3]).detach().cpu().double() / 2
        low, high = middle.quantile(middle.new_tensor([0.02, 0.98]))  # single boxes may lie anywhere
        begins = ((middle[:-1] - middle[1:]) > (high - low) / 2).nonzero()[:, 0] + 1
        starts = [0, *begins.tolist()] if len(begins) < 12 else [0]  # YOLOv5 has three anchors on each of four
        ends = [*starts[1:], len(middle)]
        found += [slice(place.start + start, place.start + end) for start, end in zip(starts, ends, strict=True)]
    return found
