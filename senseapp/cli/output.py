"""What commands print: progress on standard error, measured figures as JSON."""

import math
import sys
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import asdict
from typing import Any, NoReturn

from tqdm import tqdm

from senseapp.metrics import MetricChange
from senseapp.prove.decision import pays
from senseapp.records.candidate import Candidate
from senseapp.records.deployment import RuntimeFigures
from senseapp.records.measurement import LayerMeasurement, RunResult, Status
from senseapp.records.promise import Promise, shortfall, verdicts
from senseapp.server.tasks import RunObserver


def number(value: float) -> float | None:
    """Return ``value``, or None where JSON has no form for it."""
    return value if math.isfinite(value) else None


def changes_json(changes: Iterable[MetricChange], *, values: bool = True) -> dict[str, dict[str, float | None]]:
    """Return each metric's drop with its interval, and, with ``values``, the metric itself."""
    kept = ("value", "delta", "ci_low", "ci_high") if values else ("delta", "ci_low", "ci_high")
    return {each.metric: {name: number(getattr(each, name)) for name in kept} for each in changes}


def figures_json(figures: RuntimeFigures) -> dict[str, Any]:
    """Return the changes, milliseconds, ratio of times and bytes of one file."""
    return {
        "changes": changes_json(figures.changes),
        "ms": {name: 1000 * value for name, value in asdict(figures.seconds).items()},
        "time_ratio": asdict(figures.time_ratio),
        "file_bytes": figures.file_bytes,
        **({} if figures.score_threshold is None else {"score_threshold": figures.score_threshold}),
    }


def candidate_json(candidate: Candidate) -> dict[str, Any]:
    """Return the measurements of one candidate file, its headline first."""
    return {
        "headline": candidate.headline,
        "form": candidate.form,
        "reconstruction": candidate.reconstruction,
        "metric": candidate.metric,
        "held_out": candidate.held_out,
        "images": candidate.images,
        "pays": pays(candidate),
        "upper_bound": number(candidate.bound),
        "bound": candidate.bound_text,
        **figures_json(candidate.figures),
        "original_bytes": candidate.original.file_bytes,
        "notes": list(candidate.notes),
    }


def promise_json(promise: Promise | None, candidates: Sequence[Candidate]) -> dict[str, Any]:
    """Return a promise and the files of a run that keep it, or why none does; empty without a promise."""
    if promise is None:
        return {}
    found = verdicts(candidates, promise)
    return {
        "promise": {
            "most": promise.most,
            "metric": promise.metric or (candidates[0].metric if candidates else ""),
            "certainty": promise.confidence,
            "files": {name: {"upper_bound": number(each.bound), "kept": each.holds} for name, each in found.items()},
            "missing": shortfall(candidates, promise),
        }
    }


class _Bar(RunObserver):
    """Shows work on standard error once it has appeared, so that bad input costs one line only."""

    _bar: "tqdm[NoReturn] | None" = None

    def close(self) -> None:
        """Leave it as it is, if it has appeared."""
        if self._bar is not None:
            self._bar.close()


class Phases(_Bar):
    """Shows each step as it begins, called or as an observer, from the one that begins with ``begin_at`` on."""

    def __init__(self, begin_at: str) -> None:
        self._begin_at = begin_at

    def phase(self, sentence: str) -> None:
        """Show the step that begins."""
        if self._bar is None and sentence.startswith(self._begin_at):
            self._bar = tqdm(bar_format="{desc} [{elapsed}]", file=sys.stderr, dynamic_ncols=True)
        if self._bar is not None and sentence:
            self._bar.set_description_str(sentence)

    __call__ = phase


def phases(begin_at: str = "") -> closing[Phases]:
    """Show steps and the time, where the number of steps is not known; see :class:`Phases`."""
    return closing(Phases(begin_at))


class ProgressBar(_Bar):
    """Shows a run as it goes; appears once the model is loaded."""

    def phase(self, sentence: str) -> None:
        """Show the step that begins."""
        if self._bar is not None and sentence:
            self._bar.set_description(sentence)

    def opened(self, head: RunResult, *, done: int, total: int, **_: object) -> None:
        """Draw the bar, at what an earlier attempt found."""
        self._bar = tqdm(
            total=total or None,
            initial=done,
            desc=f"{head.profile.title}, {head.num_samples} images",
            unit=" measurements",
            file=sys.stderr,
            mininterval=0.1 if sys.stderr.isatty() else 5.0,  # a bar that moves smoothly, a log file that stays short
            dynamic_ncols=True,
        )

    def measured(self, measurement: LayerMeasurement) -> None:
        """Count a measurement, and an estimate where none is planned; a layer that is passed over is none."""
        if self._bar is None or measurement.status is Status.NOT_APPLICABLE:
            return
        if not measurement.estimated or self._bar.total is None:
            self._bar.set_description(measurement.layer, refresh=False)
            self._bar.update()
