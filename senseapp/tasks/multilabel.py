"""Multi-label classification: logits (N, labels), each of a label of its own, of which several may be true of an image.

The weights do not tell such a head from one of classes that exclude each other: labels do, or a person says so.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from senseapp.core.texts import first_names, listed, plural
from senseapp.metrics.multilabel import (
    BCE,
    BERNOULLI_KL,
    LABEL_AGREEMENT,
    LRAP,
    bernoulli_divergence,
    binary_cross_entropy,
    check_truths,
)
from senseapp.tasks.base import AnswerChanges, RowTask
from senseapp.tasks.class_numbers import spelling
from senseapp.tasks.labels import TABLE_ORDER, LabelMapProposal, Targets, WrittenLabels

if TYPE_CHECKING:
    from torch import Tensor

    from senseapp.tasks.directions import ScanDirections

_NO_LABEL = frozenset(("none", "nofinding", "nolabel", "nolabels"))
"""Written in place of a label where none is true."""


@dataclass(frozen=True, kw_only=True)
class Multilabel(RowTask):
    """Which of several labels are true of an image, each independent of the others."""

    check_targets = staticmethod(check_truths)

    def head_note(self, width: int) -> str:
        """Return the note on how the outputs are read."""
        return (
            f"{'The output is' if width == 1 else f'Each of the {width:,} outputs is'} read as the logit of a label of "
            "its own (multi-label): above 0 the label is true of an image, and several may be."
        )

    def targets(self, written: WrittenLabels, confirmed: Sequence[tuple[str, int]] = ()) -> Targets:
        """Return 1, 0 or NaN (unknown) for each output of the model, float32 (N, labels); see :meth:`Task.targets`.

        Outputs that no label is written of are unknown; pictures of which nothing is known are left out.
        """
        import torch

        from senseapp.tasks.classification.class_map import resolve_class_map

        nothing = {name for name in written.names if spelling(name) in _NO_LABEL} - {name for name, _ in confirmed}
        names = [name for name in written.names if name not in nothing]
        chosen, *_ = resolve_class_map(
            names, written.output_names, written.num_outputs, confirmed, own_order=TABLE_ORDER
        )
        places = dict(chosen.pairs)
        values = torch.full((len(written.truths), written.num_outputs), math.nan)
        values[:, list(places.values())] = 0.0
        for row, truth in zip(values, written.truths, strict=True):
            row[[places[name] for name in truth.true if name in places]] = 1.0
            row[[places[name] for name in truth.unknown if name in places]] = math.nan
        kept = [int(index) for index in (~values.isnan()).any(1).nonzero()]
        named = {index: name for name, index in chosen.pairs}
        return Targets(
            values=values[kept],
            kept=kept,
            names=tuple(written.output_names) or tuple(named.get(i, str(i)) for i in range(written.num_outputs)),
            notes=(*chosen.notes, *_notes(written, len(places), len(kept), nothing)),
        )

    def proposal(self, written: WrittenLabels) -> LabelMapProposal | None:
        """Return which output each label means; see :meth:`Task.proposal`."""
        from senseapp.tasks.classification.class_map import class_orders

        names = [name for name in written.names if spelling(name) not in _NO_LABEL]
        if not names:
            return None
        first, *_ = class_orders(names, written.output_names, written.num_outputs, own_order=TABLE_ORDER)
        return replace(first, num_orders=1)

    def directions(self, output: Tensor, targets: Tensor | None, signs: Tensor, most: int) -> ScanDirections:
        """Return the gradient of the loss, where truths are known, and random probes; see :meth:`Task.directions`.

        The curvature of the loss is that of the divergence, Σ p (1 - p) δz² / labels, which the probe
        Σ ε √(p (1 - p) / labels) δz with random signs ε estimates.

        Source: Martens (2020), JMLR 21, section 9 (the Fisher matrix of a Bernoulli); Hutchinson (1990) for the probe.
        """
        from senseapp.tasks.directions import RandomDirections

        probability = output.detach().double().sigmoid()
        probe = (probability * (1 - probability) / output.shape[1]).sqrt() * signs
        if targets is None:
            other = probe.clone()
            other[:, 1::2] *= -1
        else:
            known = ~targets.isnan()
            other = (probability - targets.nan_to_num()) * known / known.sum(1, keepdim=True).clamp_min(1)
        return RandomDirections(
            vectors=(other.float(), probe.float()),
            metric=BERNOULLI_KL.name,
            factor=0.5,
            loss="" if targets is None else BCE.name,
        )

    def largest_divergence(self, output: Tensor) -> Tensor:
        """Return the mean divergence from the surest logit of all, with the worse sign; see :class:`Task`."""
        import torch

        scores = output.detach().double()
        surest = scores.abs().max().expand_as(scores)
        return torch.maximum(*(bernoulli_divergence(scores, each) for each in (surest, -surest))).mean(1)

    def loss(self, output: Tensor, targets: Tensor) -> Tensor:
        """Return the sum of each image's mean binary cross-entropy."""
        return binary_cross_entropy(output, targets).sum()

    def output_text(self, output: Tensor, names: Sequence[str]) -> str:
        """Return the names of the labels above logit 0, the surest first."""
        order = output.argsort(descending=True)
        return self._listed([int(index) for index in order if output[index] > 0], names)

    def target_text(self, target: Tensor, names: Sequence[str]) -> str:
        """Return the names of the labels that are true."""
        return self._listed([int(index) for index in (target == 1).nonzero()], names)

    def _listed(self, indices: Sequence[int], names: Sequence[str]) -> str:
        return first_names([self.output_name(index, names) for index in indices]) or "no label"

    def probabilities(self, output: Tensor) -> Tensor:
        """Return the sigmoid of each logit, float64 (N, labels)."""
        return output.double().sigmoid().nan_to_num()

    def answered(self, output: Tensor) -> list[tuple[int, ...]]:
        """Return the labels above logit 0 of each image."""
        return [tuple(row.nonzero().flatten().tolist()) for row in output > 0]

    def answer_shares(self, output: Tensor) -> Tensor:
        """Return the probability of the least sure label of each image, true or not."""
        return output.abs().float().sigmoid().amin(dim=1).nan_to_num()

    def labelled(self, targets: Tensor) -> list[tuple[int, ...] | None]:
        """Return the true labels of each image; None where some are unknown."""
        return [None if bool(row.isnan().any()) else tuple((row == 1).nonzero().flatten().tolist()) for row in targets]

    def answer_changes(self, before: Tensor, after: Tensor, targets: Tensor | None) -> AnswerChanges:
        """Return how the labels above logit 0 differ; see :meth:`Task.answer_changes`.

        An image counts as changed where any label of it does; how sure models are is told of the changed label of which
        the first is surest.
        """
        import torch

        old, new = before > 0, after > 0
        changed = old != new
        sure = torch.where(old, before, -before).float().sigmoid()  # (N, labels)
        surest = sure.masked_fill(~changed, -1.0).argmax(dim=1, keepdim=True)
        sure_before = sure.gather(1, surest).squeeze(1)
        sure_after = torch.where(new, after, -after).float().sigmoid()
        known = torch.ones_like(old) if targets is None else ~targets.isnan()
        right = known if targets is None else (old == (targets == 1)) & known
        return AnswerChanges(
            changed=changed.any(dim=1),
            damage=sure_before,
            sure=(sure_before, sure_after.gather(1, surest).squeeze(1)),
            counts=((right & changed).sum(0), (known & ~right & changed).sum(0), known.sum(0)),
        )

    def baseline_warning(self, baseline: Mapping[str, float], num_images: int, num_outputs: int) -> str:
        """Return a warning if the model is worse than one that gives each label the probability one half."""
        loss = baseline.get(BCE.name, 0.0)
        if not loss > math.log(2):
            return ""
        return (
            f"The uncompressed model's binary cross-entropy on {plural(num_images, 'image')} is "
            f"{BCE.value_text(loss)}, more than that of a guess ({math.log(2):.3f}): check the preprocessing, the "
            "order of the labels, and whether the head is multi-label. Sensitivities below mean little."
        )


def _notes(written: WrittenLabels, num_matched: int, num_kept: int, nothing: set[str]) -> tuple[str, ...]:
    notes = []
    unknown = written.num_outputs - num_matched
    if unknown:
        notes.append(f"{plural(unknown, 'output')} without a label in the table left out of all means.")
    if any(truth.unknown for truth in written.truths):
        notes.append("Labels that are blank or marked as uncertain are unknown, and left out of all means.")
    if num_kept < len(written.truths):
        notes.append(f"{plural(len(written.truths) - num_kept, 'picture')} without a known label left out.")
    if nothing:
        notes.append(f"{listed(sorted(nothing))} was taken to say that no label is true.")
    return tuple(notes)


MULTILABEL = Multilabel(
    name="multilabel",
    label="Multi-label: several labels per image",
    output_title="Labels",
    label_words=("label", "labels"),
    label_places="Class folders, or a table beside the pictures",
    label_help="A table with the file and a column of 0 and 1 for each label, or with all labels of a file in one "
    "column.",
    score_label="Highest logit",
    row="one logit per label, shape ({}, labels)",
    shown_metric=LRAP.name,
    several_labels=True,
    extra_metrics=(LRAP, BCE, BERNOULLI_KL, LABEL_AGREEMENT),
)
