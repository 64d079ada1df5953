"""Classification: one row of class scores per image, (N, classes), and one class index per image as its label.

Further axes of length 1 count nowhere: (N, classes, 1, 1), (N, 1, classes) and (N, 1, 1, classes) are such rows too.

A network with one output z for each image, (N, 1) or (N,), has two classes: its scores are taken to be (0, z). The
softmax of that is (1 - sigmoid(z), sigmoid(z)), so the metrics of class scores are those of a Bernoulli variable:
accuracy at logit 0, binary cross-entropy, and the KL divergence of two Bernoulli distributions.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from senseapp.core.texts import plural, printable
from senseapp.metrics import check_labels
from senseapp.metrics.base import SIGNIFICANCE
from senseapp.tasks.base import AnswerChanges, RowTask
from senseapp.tasks.labels import LabelMapProposal, Targets, WrittenLabels

if TYPE_CHECKING:
    from torch import Tensor

    from senseapp.tasks.directions import ScanDirections


@dataclass(frozen=True, kw_only=True)
class Classification(RowTask):
    """Which of several classes an image belongs to."""

    check_targets = staticmethod(check_labels)

    def output(self, model_output: object) -> Tensor:
        """Return class scores, (N, classes); of one logit z for each image the scores 0 and z of two classes."""
        scores = super().output(model_output)
        if scores.shape[1] > 1:
            return scores
        import torch

        return torch.cat([torch.zeros_like(scores), scores], dim=1)

    def targets(self, written: WrittenLabels, confirmed: Sequence[tuple[str, int]] = ()) -> Targets:
        """Return the class index that each picture's folder or line means, int64; see :meth:`Task.targets`.

        Pictures in one single folder whose name means no class are a heap: they are measured without labels.
        """
        import torch

        from senseapp.tasks.classification.class_map import class_orders, resolve_class_map

        outputs = written.output_names, written.num_outputs
        is_one_folder = written.layout == "class folders" and len(written.names) == 1 and not confirmed
        if is_one_folder and class_orders(written.names, *outputs)[0].unmatched:
            name = printable(written.names[0])
            reason = f"All pictures lie in one folder, {name}, which is no class of this model."
            return Targets(values=None, notes=(reason,))
        orders = resolve_class_map(written.names, *outputs, confirmed, **written.sorting)
        chosen = orders[0]
        indices = dict(chosen.pairs)
        kept = [place for place, label in enumerate(written.labels) if label in indices]
        named = {index: name for name, index in chosen.pairs}
        names = tuple(named.get(index, str(index)) for index in range(written.num_outputs))
        return Targets(
            values=torch.tensor([indices[written.labels[place]] for place in kept], dtype=torch.int64),
            kept=kept,
            names=tuple(written.output_names) or names,
            notes=(*self.label_notes(written.labels), *chosen.notes),
            orders=() if chosen.certain else orders,
        )

    def proposal(self, written: WrittenLabels) -> LabelMapProposal | None:
        """Return which class each name means; see :meth:`Task.proposal`."""
        if not written.names:
            return None
        from senseapp.tasks.classification.class_map import class_orders

        return class_orders(written.names, written.output_names, written.num_outputs, **written.sorting)[0]

    def label_notes(self, labels: Sequence[str]) -> tuple[str, ...]:
        """Return a note if all pictures are of one class."""
        if len(Counter(labels)) != 1:
            return ()
        return (f"All pictures are of one class, {printable(labels[0])}: accuracy says little about the others.",)

    def directions(self, output: Tensor, targets: Tensor | None, signs: Tensor, most: int) -> ScanDirections:
        """Return directions of the class scores; see :meth:`Task.directions`."""
        from senseapp.tasks.directions import choose_directions

        return choose_directions(output, targets, signs, most)

    def largest_divergence(self, output: Tensor) -> Tensor:
        """Return a bound of the KL divergence; see :meth:`Task.largest_divergence`."""
        from senseapp.tasks.directions import largest_divergence

        return largest_divergence(output)

    def loss(self, output: Tensor, targets: Tensor) -> Tensor:
        """Return the sum of each image's cross-entropy with its label."""
        import torch.nn.functional as F

        return F.cross_entropy(output, targets, reduction="sum")

    def answer(self, output: Tensor) -> Tensor:
        """Return the class with the highest score."""
        return output.argmax()

    def target_text(self, target: Tensor, names: Sequence[str]) -> str:
        """Return the name of the class."""
        return self.output_name(int(target), names)

    def answers(self, output: Tensor) -> tuple[Tensor, Tensor]:
        """Return the class with the highest score and its probability."""
        sure, answer = output.float().softmax(dim=1).nan_to_num().max(dim=1)
        return answer, sure

    def probabilities(self, output: Tensor) -> Tensor:
        """Return the softmax of the class scores, float64 (N, classes)."""
        return output.double().softmax(dim=1).nan_to_num()

    def answered(self, output: Tensor) -> list[tuple[int, ...]]:
        """Return the class with the highest score of each image."""
        return [(index,) for index in self.answers(output)[0].tolist()]

    def answer_shares(self, output: Tensor) -> Tensor:
        """Return the probability of that class."""
        return self.answers(output)[1]

    def labelled(self, targets: Tensor) -> list[tuple[int, ...] | None]:
        """Return the class of each image."""
        return [(index,) for index in targets.tolist()]

    def answer_changes(self, before: Tensor, after: Tensor, targets: Tensor | None) -> AnswerChanges:
        """Return how the classes that images are given differ; see :meth:`Task.answer_changes`.

        Answers belong to the class of the label; without labels, to that of the first answer.
        """
        import torch

        (old, sure_before), (new, sure_after) = self.answers(before), self.answers(after)
        if targets is None:
            owner, worse, better = old, old != new, torch.zeros_like(old, dtype=torch.bool)
        else:
            owner, right, still = targets, old == targets, new == targets
            worse, better = right & ~still, ~right & still
        counted = [owner[chosen].bincount(minlength=before.shape[1]) for chosen in (worse, better, owner >= 0)]
        return AnswerChanges(
            changed=old != new,
            damage=sure_before,
            sure=(sure_before, sure_after),
            counts=(counted[0], counted[1], counted[2]),
        )

    def preview_line(self, value: float, images: str) -> str:
        """Return the share of images that the model gets right."""
        return f"Uncompressed, the model gets {100 * value:.3g} % of {images} right."

    def baseline_warning(self, baseline: Mapping[str, float], num_images: int, num_outputs: int) -> str:
        """Return a warning if answers are no better than chance, or confident and wrong.

        Sure and wrong are fewer than half right answers with a cross-entropy above that of a model that gives all
        classes the same probability, ln(classes): what mixed-up classes and wrong preprocessing look like.
        """
        top1, loss, classes = baseline.get("top1"), baseline.get("loss", 0.0), num_outputs
        if top1 is None or not math.isfinite(top1) or classes < 2:
            return ""
        right = f"The uncompressed model is right on {100 * top1:.0f} % of {plural(num_images, 'image')}"
        check = "check the preprocessing, which class each label means, or the weights. Losses then mean little."
        if near_chance(round(top1 * num_images), num_images, classes):
            return f"{right}, near chance ({100 / classes:.2g} % for {classes:,} classes): {check}"
        if top1 < 0.5 and loss > math.log(classes):  # above half it is overconfidence
            return f"{right}, and surer of its wrong answers than a guess among {classes:,} classes would be: {check}"
        return ""


def near_chance(correct: int, scored: int, num_classes: int) -> bool:
    """Whether ``correct`` of ``scored`` answers are no more than guessing among the classes would give.

    A one-sided binomial test; so few images that even all of them right would prove nothing are not judged.
    """
    chance = 1 / max(num_classes, 1)
    if not scored or chance**scored > SIGNIFICANCE:
        return False
    above = correct / scored - chance
    if above > 0 and math.exp(-2 * scored * above**2) <= SIGNIFICANCE:  # Hoeffding's bound on the tail below
        return False
    from scipy.stats import binom  # slow to import, and most models are far above chance

    return float(binom.sf(correct - 1, scored, chance)) > SIGNIFICANCE


CLASSIFICATION = Classification(
    name="classification",
    label="Classification: one class per image",
    output_title="Classes",
    label_words=("class", "classes"),
    label_places="Class folders, or a table beside the pictures",
    label_help="A folder for each class, or a CSV table with lines file,label.",
    score_label="Highest score",
    row="one row of class scores per image, shape ({}, classes), or one logit of two classes",
    shown_metric="top1",
    one_output="The network has one output, taken as the logit of the second of two classes (a sigmoid gives its "
    "probability): above 0 an image is of class 1, else of class 0.",
    prepared_by_answers=True,
)
