"""What the original network and a delivered file answer to each image, as a compact record."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from torch import Tensor

from senseapp.data.images import ImageSet
from senseapp.metrics.predictions import Predictions
from senseapp.records.answers import UNKNOWN, FileAnswers
from senseapp.tasks import Task

_DIGITS = 3  # of a probability


def file_answers(
    before: Predictions, after: Predictions, images: ImageSet, *, task: Task, names: Sequence[str]
) -> FileAnswers | None:
    """Return the answers in two outputs for ``images``, (N, ...); None where the task's outputs are no answers.

    Args:
        before: of the original network.
        after: of the file.
        images: with labels, if any.
        task: what outputs and labels mean.
        names: of the outputs, as far as they are known.
    """
    answers = [task.answered(output) for output in (before, after)]
    sure = [task.answer_shares(output) for output in (before, after)]
    if answers[0] is None or answers[1] is None or sure[0] is None or sure[1] is None:
        return None
    texts = _Texts(task, names)
    return FileAnswers(
        images=tuple(images.names),
        labels=() if images.labels is None else tuple(map(texts.place, task.labelled(images.labels))),
        original=tuple(map(texts.place, answers[0])),
        file=tuple(map(texts.place, answers[1])),
        sure_original=_rounded(sure[0]),
        sure_file=_rounded(sure[1]),
        texts=tuple(texts.known),
    )


class _Texts:
    """The texts of answers, each once; outputs whose names are alike get their number."""

    def __init__(self, task: Task, names: Sequence[str]) -> None:
        self._task = task
        self._names = names
        self._counts = Counter(task.output_name(index, names) for index in range(len(names)))
        self.known: dict[str, int] = {}

    def place(self, outputs: Sequence[int] | None) -> int:
        """Return the place of the text of an answer that names these outputs."""
        if outputs is None:
            return UNKNOWN
        text = ", ".join(map(self._name, outputs)) or f"no {self._task.label_words[0]}"
        return self.known.setdefault(text, len(self.known))

    def _name(self, index: int) -> str:
        name = self._task.output_name(index, self._names)
        return f"{name} ({index})" if self._counts[name] > 1 else name


def _rounded(shares: Tensor) -> tuple[float, ...]:
    return tuple(round(share, _DIGITS) for share in shares.tolist())
