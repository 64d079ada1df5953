"""Values: outputs of any other meaning, as numbers: embeddings, key points, depth, sequences, several tensors at once.

A network may return a tensor, or tuples, lists and dictionaries of them, images first. Each tensor becomes one row of
numbers for each image, and all rows together (N, outputs, values), with zeros behind shorter ones. Metrics compare each
output with its own power; see :mod:`senseapp.metrics.values`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from senseapp.core.errors import UnsupportedModel
from senseapp.core.texts import plural
from senseapp.metrics.predictions import Predictions, tensors_in
from senseapp.metrics.values import COSINE, FIDELITY, SQUARED_ERROR, TASK, squared_errors
from senseapp.tasks.base import AnswerChanges, Task

if TYPE_CHECKING:
    from torch import Tensor

    from senseapp.tasks.directions import ScanDirections

_MOST_VALUES = 2**22  # of one output of an image: 16 MB


@dataclass(frozen=True, kw_only=True)
class Values(Task):
    """Numbers whose meaning no other task knows."""

    def output(self, model_output: object) -> Tensor:
        """Return all outputs, (N, outputs, values); of one with more than 4 million values always the same ones."""
        return _rows(_measured(model_output), _MOST_VALUES)

    def predictions(self, model_output: object, *, most_bytes: int | None = None) -> Predictions:
        """Return all outputs, or as many values of each as fit; see :meth:`Task.predictions`."""
        found = _measured(model_output)
        return _rows(found, _most_values(len(found), most_bytes))

    def predictions_note(self, model_output: object, *, most_bytes: int | None = None) -> str:
        """Return which outputs are left out, and how many values of the others."""
        sizes = [each[0].numel() for each in _measured(model_output)]
        most, others = _most_values(len(sizes), most_bytes), sum(1 for _ in tensors_in(model_output)) - len(sizes)
        notes = []
        if others:
            left = f"{plural(others, 'output')} left out"
            notes.append(f"{left}: whole numbers, and numbers that are not of single images, are not compared.")
        if max(sizes) > most:
            kept = sum(min(size, most) for size in sizes)
            notes.append(f"Outputs are compared at {kept:,} of {sum(sizes):,} values of each image, always the same.")
        return " ".join(notes)

    def check_output(self, model_output: object, num_images: int) -> None:
        """Refuse what holds no numbers of each image; see :meth:`Task.check_output`."""
        found = _measured(model_output)
        if found and len(found[0]) == num_images:
            return
        shapes = ", ".join(str(tuple(each.shape)) for each in tensors_in(model_output))
        raise UnsupportedModel(
            f"The model must return floating-point numbers of each of {plural(num_images, 'image')}; it returned "
            f"{f'tensors of shape {shapes}' if shapes else f'a {type(model_output).__name__}'}. Choose other outputs."
        )

    def baseline_note(self, predictions: Predictions) -> str:
        """Return a note if all outputs are zero."""
        return "" if predictions.any() else "The uncompressed model returns only zeros, so nothing can be lost."  # type: ignore[union-attr]

    def directions(self, output: Tensor, targets: Any, signs: Tensor, most: int) -> ScanDirections:
        """Return two random directions, the second with every other sign turned; see :meth:`Task.directions`.

        With random signs ε and v = ε / √(outputs · power), E[(v·δz)²] is the mean over the outputs of ‖δz‖² / power.
        """
        from senseapp.tasks.directions import RandomDirections

        power = output.detach().double().square().sum(2, keepdim=True)
        first = signs * (power * output.shape[1]).rsqrt().where(power > 0, 0.0).float()
        second = first.clone()
        second[:, :, 1::2] *= -1
        return RandomDirections(vectors=(first, second), metric=SQUARED_ERROR.name)

    def score(self, output: Tensor) -> Tensor:
        """Return the sum of each image's logarithm of the power of an output, a mean over outputs."""
        return output.square().mean(2).clamp_min(1e-30).log().mean(1).sum()

    def output_text(self, output: Tensor, names: Sequence[str]) -> str:
        """Return the largest numbers of the first outputs."""
        largest = [f"±{float(row.abs().max()):.3g}" for row in output[:3]]
        return f"numbers up to {', '.join(largest)}{', …' if len(output) > 3 else ''}"

    def answer_changes(self, before: Any, after: Any, targets: Any) -> AnswerChanges:
        """Return the squared error of each image; see :meth:`Task.answer_changes`."""
        errors = squared_errors(before.double(), after.double()).mean(1)
        texts = [SQUARED_ERROR.change_text(each) for each in (*errors.tolist(), float(errors.median()))]
        return AnswerChanges(
            changed=errors != 0,
            damage=errors.nan_to_num(math.inf),
            said=f"The squared error of half of the images is at most {texts[-1]}.",
            captions=[f"squared error {text}" for text in texts[:-1]],
        )


def _measured(model_output: object) -> list[Tensor]:
    """Return floating-point tensors with as many entries as the first; one entry is taken to be that of all images."""
    found = [each for each in tensors_in(model_output) if each.is_floating_point() and each.ndim and each.numel()]
    return [each.expand(len(found[0]), *each.shape[1:]) for each in found if len(each) in (1, len(found[0]))]


def _most_values(outputs: int, most_bytes: int | None) -> int:
    return _MOST_VALUES if most_bytes is None else min(_MOST_VALUES, max(1, most_bytes // (4 * outputs)))


def _rows(found: list[Tensor], most: int) -> Tensor:
    """Return (N, outputs, values), with at most so many values of each output."""
    import torch
    from torch.nn.functional import pad

    rows = [_kept(each.reshape(len(each), -1), most).float() for each in found]
    width = max(each.shape[1] for each in rows)
    return torch.stack([pad(each, (0, width - each.shape[1])) for each in rows], dim=1)


def _kept(values: Tensor, most: int) -> Tensor:
    """Return at most so many of the columns: one at random in each of as many equal parts, always the same."""
    import torch

    number = values.shape[1]
    if number <= most:
        return values
    shift = torch.rand(most, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    places = ((torch.arange(most) + shift) * (number / most)).long().clamp_max(number - 1)
    return values[:, places.to(values.device)]


VALUES = Values(
    name=TASK,
    label="Values: any other output",
    output_title="Outputs",
    label_words=("output", "outputs"),
    label_places="Nowhere",
    label_help="Labels are not read: outputs are compared with the original model's.",
    score_label="Logarithm of the power",
    extra_metrics=(FIDELITY, SQUARED_ERROR, COSINE),
    one_tensor=False,
    uses_labels=False,
    fits_anything=True,
    not_compared="Outputs without classes are not compared picture by picture. Results and Schedule show the pictures "
    "that change most.",
)
