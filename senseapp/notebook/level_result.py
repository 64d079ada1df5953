"""One compression at one level, as table, summary, schedule and bar chart for a notebook."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import altair as alt
import pandas as pd

from senseapp import descriptions
from senseapp.core.errors import InvalidSchedule
from senseapp.core.registry import grouped
from senseapp.solve.gamma import gamma_levels

if TYPE_CHECKING:
    from torch import nn

_PIXELS_PER_INCH = 72  # as inline figures of older versions of matplotlib, whose figsize this takes


def _json_value(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerSensitivity:
    """What compressing one layer did: metrics as ``eval_fn`` returned them, and ``delta`` > 0 where that is worse.

    Numbers that were not measured are NaN, and ``reason`` says why; so is the interval, as one number from ``eval_fn``
    has none. ``group_id`` and ``group_members`` name the coupled layers it was compressed with; empty if alone.
    """

    name: str
    layer_type: str
    params: int
    baseline_metric: float
    compressed_metric: float
    delta: float
    group_id: str = ""
    group_members: tuple[str, ...] = ()
    prunable: bool = True
    ci_low: float = float("nan")
    ci_high: float = float("nan")
    reason: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as a dictionary that is strict JSON: None stands for numbers that were not measured."""
        return {name: _json_value(value) for name, value in asdict(self).items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class SensitivityResult:
    """What compressing each layer to one level, in percent or bits, did; ``layers`` are in execution order.

    ``compression_type`` is spelled as in the reference: ``sparsity``, ``quantization-4bit``, ``quantization-8bit+act``.
    ``notes`` are sentences on what is unusual, such as whole passes where nothing could be replayed.
    """

    compression_type: str
    compression_level: float
    baseline_metric: float
    layers: list[LayerSensitivity]
    metric_name: str = "accuracy"
    higher_is_better: bool = True
    notes: tuple[str, ...] = ()

    @property
    def level_text(self) -> str:
        """Compression and level: ``sparsity at 50 %``."""
        compression = self.compression_type.partition("-")[0]
        return f"{compression} at {self.compression_level:g} {descriptions.get(compression).scale.suffix}"

    def as_dict(self) -> dict[str, Any]:
        """Return everything as plain dictionaries and lists that are strict JSON; see the layers' ``as_dict``."""
        own = {name: _json_value(value) for name, value in asdict(self).items()}
        return own | {"layers": [layer.as_dict() for layer in self.layers]}

    def top(self, n: int = 5, *, most_sensitive: bool = True) -> list[LayerSensitivity]:
        """Return the ``n`` layers that suffer most (or least), of those measured."""
        return sorted(self._measured(), key=lambda layer: layer.delta, reverse=most_sensitive)[:n]

    def summary(self, *, top: int = 5) -> None:
        """Print the baseline and the ``top`` most fragile and most robust layers."""
        print("\n".join(self._summary_lines(top)))  # noqa: T201 - the reference notebook prints it too

    def _summary_lines(self, top: int) -> Iterator[str]:
        measured = self._measured()
        yield self.level_text
        yield f"Baseline {self.metric_name}: {self.baseline_metric:.4f}"
        yield f"Layers measured: {len(measured)} of {len(self.layers)}"
        yield from self.notes
        for title, fragile in (("Most fragile", True), ("Most robust", False)):
            yield f"{title}:"
            for layer in self.top(top, most_sensitive=fragile):
                yield f"  {layer.name:40} {layer.delta:+.4f}"

    def to_dataframe(self) -> pd.DataFrame:
        """Return one row per layer, with the fields of :class:`LayerSensitivity` as columns."""
        return pd.DataFrame([asdict(layer) for layer in self.layers])

    def to_layer_targets(
        self,
        model: nn.Module | None = None,
        target_pct: float = 50,
        min_pct: float = 0,
        max_pct: float = 90,
        gamma: float = 1.0,
    ) -> dict[str, float]:
        """Return percent per layer whose mean, weighted by parameters, is ``target_pct``: fragile layers get less.

        All lie from ``min_pct`` to ``max_pct``. A ``gamma`` of 0 treats all layers alike; larger values spare fragile
        ones more. ``model`` is accepted for the reference's sake; parameter counts are known already.

        Raises InvalidSpec for limits or gamma out of range, InvalidSchedule if no layer was measured, InfeasibleBudget,
        with the nearest target, for one outside the limits.
        """
        measured = ((each.group_id or f"layer:{each.name}", each) for each in self._measured())
        units = list(grouped(measured).values())  # layers of one coupled group together
        if not units:
            raise InvalidSchedule("No layer was measured, so there is nothing to share the target among.")
        levels = gamma_levels(
            [members[0].delta for members in units],
            [sum(layer.params for layer in members) for members in units],
            target=target_pct / 100,
            low=min_pct / 100,
            high=max_pct / 100,
            gamma=gamma,
        )
        return {
            layer.name: round(100 * float(level), 2)
            for members, level in zip(units, levels, strict=True)
            for layer in members
        }

    to_schedule = to_layer_targets

    def plot(self, figsize: tuple[float, float] | None = None) -> alt.Chart:
        """Return a bar chart of the deltas, one per layer in execution order, from blue (robust) to red (fragile).

        With a ``figsize``, in inches of 72 pixels, layers stand side by side, as in the reference.
        """
        measured = self._measured()
        rows = pd.DataFrame({"layer": [item.name for item in measured], "delta": [item.delta for item in measured]})
        layers: dict[str, Any] = {"shorthand": "layer:N", "sort": None, "title": None}
        drop: dict[str, Any] = {"shorthand": "delta:Q", "title": f"drop in {self.metric_name}"}
        axis = alt.Axis(labelLimit=240, labelOverlap=False, labelAngle=-60 if figsize else 0)
        places: dict[str, Any] = {"x": alt.X(**drop), "y": alt.Y(**layers, axis=axis)}
        size: dict[str, Any] = {"height": alt.Step(18)}
        if figsize:
            places = {"x": alt.X(**layers, axis=axis), "y": alt.Y(**drop)}
            size = {"width": _PIXELS_PER_INCH * figsize[0], "height": _PIXELS_PER_INCH * figsize[1]}
        chart: alt.Chart = (
            alt.Chart(rows, title=f"Which layers are fragile? {self.level_text}")
            .mark_bar()
            .encode(
                **places,
                color=alt.Color("delta:Q", scale=alt.Scale(scheme="redyellowblue", reverse=True), legend=None),
                tooltip=["layer", alt.Tooltip("delta", format="+.4f")],
            )
            .properties(**size)
        )
        return chart

    def _measured(self) -> list[LayerSensitivity]:
        return [layer for layer in self.layers if layer.delta == layer.delta]
