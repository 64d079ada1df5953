"""Interface of tasks: the meaning of a model's output, its labels, and the words for both.

The engine compresses layers, runs passes and adds up; whatever depends on the meaning of an output it asks of the task.
Nothing here imports torch at load time: settings, pages and the command line read the facts of a task.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from senseapp.core.errors import InvalidInput, InvalidSpec, UnsupportedModel
from senseapp.metrics import METRICS, Metric
from senseapp.metrics.base import AnswerDrop
from senseapp.metrics.predictions import Predictions
from senseapp.tasks.annotations import AnnotationReader
from senseapp.tasks.class_numbers import Background
from senseapp.tasks.labels import LabelMapProposal, Targets, WrittenLabels
from senseapp.tasks.reading import OutputReader

if TYPE_CHECKING:
    from torch import Tensor

    from senseapp.tasks.directions import ScanDirections


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerChanges:
    """How the answers of two models to the same images differ.

    Attributes:
        changed: whether that to an image does, bool (N,).
        damage: by which the worst images come first, (N,).
        said: how much changes, in one sentence; empty for how many of the images are answered differently.
        captions: of each image, what changed in it; empty for both answers with their probabilities.
        sure: the probability that each model gives to its own answer, (N,) each; None where captions say what changed.
        counts: worse, better and totals: of each class or label, (K,), how many of the answers that are its own became
            wrong, and right, and how many there are; without targets an answer that changed became wrong. None where
            classes lose no counts of answers.
        class_drops: returns what classes lose, for a confidence, where there are no counts.
        measure: what they lose it of: ``IoU with the masks``.
    """

    changed: Tensor
    damage: Tensor
    said: str = ""
    captions: Sequence[str] = ()
    sure: tuple[Tensor, Tensor] | None = None
    counts: tuple[Tensor, Tensor, Tensor] | None = None
    class_drops: Callable[[float], Sequence[AnswerDrop]] = lambda _confidence: ()
    measure: str = ""


@dataclass(frozen=True, kw_only=True)
class Task(ABC):
    """One kind of model. A new one subclasses this in a file of its own, and is registered in one line.

    Attributes:
        name: in settings, files and on the command line.
        label: the name people see.
        output_title: what the numbers of one image are called in a table, in the plural.
        label_words: one label and several, as people count them.
        label_places: where labels are looked for unless a person says otherwise.
        label_help: how labels are brought along, in one sentence.
        score_label: what :meth:`score` is of one image.
        shown_metric: what a preview tells of the uncompressed model where there are labels; empty for nothing.
        extra_metrics: registered with the task; any other metric that names it belongs to it too.
        prepared_by_answers: whether answers are class scores, by which the images can choose their preprocessing.
        one_output: how a single output is read, in one sentence, where it stands for two classes.
        several_labels: whether several labels may be true of one image.
        has_score_threshold: whether answers are those with a score from a threshold on, which each file has of its own.
        one_tensor: whether :meth:`predictions` are one row of numbers, which metrics of any task can compare.
        annotations: how annotations lie beside pictures and what they mean; None where pictures have labels.
        not_compared: why answers of two files are not compared picture by picture; empty where they are.
        usual_side: pixels of the images of such networks where a file takes any size; None where this is open.
        uses_labels: whether labels and annotations of pictures are read.
        fits_anything: whether outputs of any meaning fit, so that it is certain of none and comes after other tasks.
    """

    name: str
    label: str
    output_title: str
    label_words: tuple[str, str]
    label_places: str
    label_help: str
    score_label: str
    shown_metric: str = ""
    extra_metrics: tuple[Metric, ...] = ()
    prepared_by_answers: bool = False
    one_output: str = ""
    several_labels: bool = False
    has_score_threshold: bool = False
    one_tensor: bool = True
    annotations: AnnotationReader | None = None
    not_compared: str = ""
    usual_side: int | None = None
    uses_labels: bool = True
    fits_anything: bool = False

    # ---- outputs

    def output(self, model_output: object) -> Tensor:
        """Return the tensor to measure of a model's raw output, images first; called in each pass.

        Networks that return a tuple or a dictionary need a task that picks from it and brings it into one tensor,
        through which gradients flow.
        """
        return cast("Tensor", model_output)

    def predictions(self, model_output: object, *, most_bytes: int | None = None) -> Predictions:
        """Return the part of a model's raw output that metrics compare; by default :meth:`output`.

        Those of the uncompressed model stay in memory during a run, in float32 and on the CPU. Where :meth:`output` is
        larger than ``most_bytes`` for each image, a task keeps less of it, always the same part, and
        :meth:`predictions_note` says which.
        """
        return self.output(model_output)

    def predictions_note(self, model_output: object, *, most_bytes: int | None = None) -> str:
        """Return one sentence where :meth:`predictions` leaves something out; else empty."""
        return ""

    def baseline_note(self, predictions: Predictions) -> str:
        """Return one sentence where the uncompressed model says nothing that could be lost; else empty."""
        return ""

    def score_threshold(self, predictions: Predictions, targets: Any, original: Predictions | None = None) -> float:
        """Return the score from which the answers in ``predictions`` are most like ``targets``.

        Without targets they are compared with those of the ``original`` network; for itself it is the usual threshold.
        """
        raise NotImplementedError

    def at_threshold(self, predictions: Predictions, threshold: float) -> Predictions:
        """Return predictions whose answers are those with a score of at least ``threshold``."""
        raise NotImplementedError

    def readers(
        self, model_output: object, size: tuple[int, int], num_classes: int = 0, *, every: bool = False
    ) -> Sequence[OutputReader]:
        """Return what may read every output of a network as the one in ``model_output``, for images of ``size`` (H, W).

        Each is of a layout that neither shapes nor values contradict, the most probable first. The network returns what
        the chosen one makes of its outputs: a compressed network's values may lie in other ranges. Empty for tasks that
        read outputs in one way. Outputs on the device ``meta`` have shapes alone. ``num_classes`` is their number where
        it is known otherwise; with ``every``, layouts come too that values make improbable, for labels to judge.

        Raises UnsupportedModel if it is no output of this task.
        """
        return ()

    def reader_of(self, key: str) -> OutputReader:
        """Return the reader of a layout that a setting names; raises InvalidSpec where it names none."""
        raise InvalidSpec(f"Outputs of {self.label.lower()} are read in one way. Leave the layout out.")

    @abstractmethod
    def check_output(self, model_output: object, num_images: int) -> None:
        """Raise UnsupportedModel, with what was expected and what came, unless the output is that of this task."""

    def mirror_agreement(self, output: object, mirrored: object, width: int) -> list[float]:
        """Return how far answers to images, (N, C, H, ``width``), agree with those to their mirror images.

        From 0 for chance (or no answers) to 1; 0 for tasks whose answers have no place in the image.
        """
        return [0.0]

    def confusion(self, predictions: Any, targets: Any, num_outputs: int) -> Tensor | None:
        """Return how often what is labelled as each output is found as each, (outputs, outputs); None where unknown."""
        return None

    def num_outputs(self, output: Tensor) -> int:
        """Return how many numbers there are for each image, or for each of its positions: (N, outputs, ...)."""
        return int(output.shape[1])

    def outputs_of_head(self, width: int) -> int:
        """Return how many numbers :meth:`output` has for each image of a network whose last layer has ``width``."""
        return 2 if width == 1 and self.one_output else width

    def head_note(self, width: int) -> str:
        """Return one sentence on how a last layer of this ``width`` is read, where it could be read otherwise."""
        return self.one_output if width == 1 else ""

    # ---- metrics

    @property
    def own_metrics(self) -> tuple[Metric, ...]:
        """The metrics of this task and those of any task, in display order."""
        tasks = ("", self.name) if self.one_tensor else (self.name,)
        return tuple(metric for metric in METRICS.values() if metric.task in tasks)

    def metrics(self, *, has_labels: bool, num_outputs: int) -> tuple[str, ...]:
        """Return the names of the metrics that can be measured of a whole compressed model."""
        found = (each for each in self.own_metrics if not each.obstacle(has_labels=has_labels, num_classes=num_outputs))
        return tuple(metric.name for metric in found)

    def layer_metrics(self, *, has_labels: bool, num_outputs: int) -> tuple[str, ...]:
        """Return the names of those that are measured of each layer."""
        names = self.metrics(has_labels=has_labels, num_outputs=num_outputs)
        return tuple(name for name in names if not METRICS[name].proof_only)

    @property
    def divergence(self) -> str:
        """The metric that the quick scan estimates; empty if there is no quick scan."""
        return next((each.name for each in self.own_metrics if each.divergence and not each.needs_labels), "")

    # ---- labels

    def targets(self, written: WrittenLabels, confirmed: Sequence[tuple[str, int]] = ()) -> Targets:
        """Return what labels mean to the metrics; raises InvalidDataset where one means nothing to the model.

        ``confirmed`` are pairs (label, index of the output) that a person has confirmed; others are then left out. To a
        task whose pictures are annotated, the labels of folders and image sets say nothing.
        """
        return Targets(values=None)

    def proposal(self, written: WrittenLabels) -> LabelMapProposal | None:
        """Return which output each label means, for a person to confirm; None where there is nothing to confirm."""
        return None

    def background(self, output: Tensor) -> Background:
        """Return which class of :meth:`output` says that there is nothing."""
        return "unknown"

    def label_notes(self, labels: Sequence[str]) -> tuple[str, ...]:
        """Return sentences on labels that make poor targets."""
        return ()

    def check_targets(self, targets: Any, num_images: int, num_outputs: int) -> None:
        """Raise InvalidInput for targets that do not belong to the images or the model."""
        if len(targets) != num_images:
            raise InvalidInput(f"{num_images} images need as many labels, got {len(targets)}.")

    # ---- the quick scan and histograms

    def directions(self, output: Tensor, targets: Any, signs: Tensor, most: int) -> ScanDirections:
        """Return at most ``most`` (at least 2) directions for each image, for tasks that have a divergence.

        ``output`` is that of the uncompressed model, on the CPU, and ``signs`` ±1 at random, alike in shape.
        """
        raise NotImplementedError

    def output_parts(self, output: Tensor) -> Sequence[Tensor]:
        """Return one direction for each part of the output that may depend on other layers than the rest, like it.

        ``output`` is that of one image. Where there are parts, :meth:`directions` returns :class:`PartedDirections`.
        """
        return ()

    def largest_divergence(self, output: Any) -> Tensor:
        """Return how large the divergence from each of N predictions can be, (N,), float64; estimates are cut there."""
        import torch

        return torch.full((len(output),), math.inf, dtype=torch.float64)

    def score(self, output: Tensor) -> Tensor:
        """Return what histograms back-propagate without labels, summed over the images, differentiable.

        By default that is the highest number of an image, or of each of its positions as a mean over them.
        """
        return output.amax(dim=1).reshape(len(output), -1).mean(dim=1).sum()

    def loss(self, output: Tensor, targets: Any) -> Tensor:
        """Return what histograms back-propagate with labels, summed over the images, differentiable."""
        return self.score(output)  # of tasks that read no labels

    # ---- what people are shown

    def answer(self, output: Any) -> Any:
        """Return the prediction for one image, without a batch axis, in the form of a label."""
        return output

    def output_text(self, output: Any, names: Sequence[str]) -> str:
        """Return the prediction for one image, without a batch axis, as a short text."""
        return self.target_text(self.answer(output), names)

    def target_text(self, target: Any, names: Sequence[str]) -> str:
        """Return the label of one image in a few letters; empty for tasks that read no labels."""
        return ""

    def probabilities(self, output: Any) -> Tensor | None:
        """Return the probability of each output, float64 (N, K); None where outputs are no scores of answers."""
        return None

    def answered(self, output: Any) -> list[tuple[int, ...]] | None:
        """Return the outputs that the answer to each image names; None where outputs are no scores of answers."""
        return None

    def answer_shares(self, output: Any) -> Tensor | None:
        """Return the probability of each image's answer, (N,); None where there is none."""
        return None

    def labelled(self, targets: Any) -> list[tuple[int, ...] | None]:
        """Return the outputs that the label of each image names; None where the label is not fully known."""
        return [None] * len(targets)

    def answer_changes(self, before: Any, after: Any, targets: Any) -> AnswerChanges | None:
        """Return how the answers in two predictions of the same images differ; None where they are no answers."""
        return None

    def drawn(self, picture: NDArray[np.uint8], output: Any) -> NDArray[np.uint8] | None:
        """Return a picture, RGB (H, W, 3), with the prediction of it drawn in it; None where none is drawn."""
        return self.drawn_target(picture, self.answer(output))

    def drawn_target(self, picture: NDArray[np.uint8], target: Any) -> NDArray[np.uint8] | None:
        """Return a picture with its label drawn in it; see :meth:`drawn`."""
        return None

    def legend(self, outputs: Sequence[Any], names: Sequence[str]) -> bytes:
        """Return what :meth:`drawn` colours mean in predictions of some images, as a PNG file; empty for nothing."""
        return b""

    def output_name(self, index: int, names: Sequence[str]) -> str:
        """Return the name of an output, of which ``names`` may be known."""
        return names[index].split(",")[0] if index < len(names) else f"{self.label_words[0]} {index}"

    def preview_line(self, value: float, images: str) -> str:
        """Return one sentence on the shown metric of the uncompressed model over so many ``images``."""
        metric = METRICS[self.shown_metric]
        if math.isnan(value):
            return f"Uncompressed, {metric.label} is not known: no annotation of {images} is of a class of the model."
        return f"Uncompressed, {metric.label} is {metric.value_text(value)} over {images}."

    def baseline_warning(self, baseline: Mapping[str, float], num_images: int, num_outputs: int) -> str:
        """Return a sentence where ``baseline``, by metric, says that a model does not do its task; else empty."""
        return ""


@dataclass(frozen=True, kw_only=True)
class RowTask(Task):
    """A task of one row of numbers for each image: (N,), (N, K), or that with further axes of length 1.

    Attributes:
        row: what the output of a network must be, with a place for the number of images.
    """

    row: str

    def output(self, model_output: object) -> Tensor:
        """Return the rows, (N, K)."""
        output = cast("Tensor", model_output)
        return output.reshape(len(output), -1)

    def check_output(self, model_output: object, num_images: int) -> None:
        """Refuse what is not one row for each image; see :meth:`Task.check_output`."""
        first, *others = getattr(model_output, "shape", None) or (0,)
        if first != num_images or 0 in others or sum(length > 1 for length in others) > 1:
            raise refuse_output(self.row.format(num_images), model_output, self.name)


def refuse_output(expected: str, model_output: object, task: str) -> UnsupportedModel:
    """Return the refusal of a model whose output is not ``expected`` by the task of that name."""
    shape = getattr(model_output, "shape", None)
    came = f"a {type(model_output).__name__}" if shape is None else f"a tensor of shape {tuple(shape)}"
    return UnsupportedModel(f"The model must return {expected}; it returned {came}. Choose a {task} model.")
