"""The cleaned curves of a run, with a sentence on everything left out, and their limits."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from senseapp.core.errors import InvalidSchedule, InvalidSpec
from senseapp.core.registry import grouped
from senseapp.core.texts import first_names, plural
from senseapp.descriptions import CompressionConfig, CompressionDescription, get
from senseapp.metrics import divergence_among
from senseapp.records.measurement import LayerMeasurement, RunResult, Status
from senseapp.records.profile import ModelProfile
from senseapp.records.resolution import smallest_visible_loss
from senseapp.records.schedule import Limits
from senseapp.solve.curves import Choice, CurvePoint, LayerCurve, cleaned
from senseapp.solve.joint import JointDamage

_EQUAL_SIZES_NOTE = (
    "The sizes of the layers are unknown, so every layer counts alike: what is removed is a mean over layers, not a "
    "share of the weights."
)
_NOMINAL = 1_000_000  # weights and MACs per layer; divisible, so that no level is rounded


@dataclass(frozen=True, slots=True, kw_only=True)
class CurveSet:
    """The curves of the layers that can be scheduled, in execution order, of one run, with damage in ``metric``.

    ``left_alone`` are the members of each layer (or group) without a usable measurement. ``notes`` are sentences on
    everything left out or estimated; ``file_notes`` those on differences from what target files assume. ``visible`` is
    the smallest damage that the images can show, 0 if unknown. Without a ``joint`` model of damage, damages are added.
    """

    curves: tuple[LayerCurve, ...]
    metric: str
    compression: str
    profile: ModelProfile
    left_alone: tuple[tuple[str, ...], ...] = ()
    notes: tuple[str, ...] = ()
    file_notes: tuple[str, ...] = ()
    visible: float = 0.0
    num_images: int = 0
    joint: JointDamage | None = None

    @property
    def description(self) -> CompressionDescription:
        """The compression."""
        return get(self.compression)

    def curve_of(self, layer: str) -> LayerCurve | None:
        """Return the curve of ``layer``, as first member or other member of a group."""
        return next((curve for curve in self.curves if layer in curve.members), None)

    def damage(self, chosen: Mapping[str, Choice]) -> float:
        """Return the predicted damage of one choice per curve (by first member) together."""
        return sum(choice.damage for choice in chosen.values()) if self.joint is None else self.joint.damage(chosen)


def damage_metric(result: RunResult, metric: str | None = None) -> str:
    """Return ``metric``, if it was measured; by default KL, which adds up over layers best, else the run's own."""
    measured = result.shown_metrics
    if metric is None:
        return divergence_among(measured) or result.metric
    if metric not in measured:
        raise InvalidSpec(f"{metric!r} was not measured in this run; choose one of {', '.join(measured) or 'none'}.")
    return metric


def curves_of(result: RunResult, metric: str | None = None) -> CurveSet:
    """Build the curve of every layer (or group) with a finite measurement; unknown sizes count as equal."""
    equal = not result.profile.sizes_known
    result = _with_equal_sizes(result)
    name = damage_metric(result, metric)
    config = result.compression
    by_layer = grouped((item.layer, item) for item in result.shown)
    curves, left_alone, without_value = [], [], []
    layers = result.profile.layers
    place = {layer.name: index for index, layer in enumerate(layers)}
    for layer in sorted(by_layer, key=lambda name: place.get(name, len(place))):
        items = by_layer[layer]
        members = items[0].members or (layer,)
        points = _points(items, name, config)
        finite = [point for point in points if math.isfinite(point.damage)]
        if len(finite) < len(points):
            without_value.append(layer)
        if finite:
            curves.append(
                LayerCurve(
                    layer=layer,
                    members=members,
                    compression=config.kind,
                    num_params=sum(layers[place[member]].num_params for member in members),
                    points=cleaned(finite),
                    continuous=config.only_level is None,
                )
            )
        else:
            left_alone.append(members)
    if not curves:
        raise InvalidSchedule(f"No layer has a finite measurement of {name}, so there is nothing to schedule.")
    return CurveSet(
        curves=tuple(curves),
        metric=name,
        compression=config.kind,
        profile=result.profile,
        left_alone=tuple(left_alone),
        notes=(
            *_notes(by_layer, name, left_alone, without_value),
            *config.schedule_notes,
            *((_EQUAL_SIZES_NOTE,) if equal else ()),
        ),
        file_notes=config.schedule_notes,
        visible=smallest_visible_loss(result, name) or 0.0,
        num_images=result.num_samples,
        joint=JointDamage.of(result, name, curves),
    )


def _points(items: Sequence[LayerMeasurement], metric: str, config: CompressionConfig) -> list[CurvePoint]:
    """Return the measured points, gentlest first; damage may still be negative or not finite."""
    points = [
        CurvePoint(
            level=item.level, damage=change.delta, removed_params=item.removed_params, removed_macs=item.removed_macs
        )
        for item in items
        if item.status is Status.MEASURED and (change := item.change(metric)) is not None
    ]
    return sorted(points, key=lambda point: config.scale.strength(point.level))


def _notes(
    by_layer: dict[str, list[LayerMeasurement]],
    metric: str,
    left_alone: Sequence[tuple[str, ...]],
    without_value: Sequence[str],
) -> tuple[str, ...]:
    notes = []
    if left_alone:
        names = [members[0] for members in left_alone]
        have, are = ("has", "is") if len(names) == 1 else ("have", "are")
        notes.append(
            f"{plural(len(names), 'layer')} {have} no usable measurement and {are} left alone: {first_names(names)}."
        )
    if without_value:
        named = first_names(without_value)
        notes.append(f"Levels at which {metric} was not a finite number were not considered: {named}.")
    values = [item for items in by_layer.values() for item in items if item.status is Status.MEASURED]
    estimated = sum(item.estimated for item in values)
    if estimated:
        notes.append(f"{estimated} of {len(values)} damages are estimates of the quick scan, not measurements.")
    return tuple(notes)


def _with_equal_sizes(result: RunResult) -> RunResult:
    """Return ``result`` with one nominal size for layers of unknown size: shares then are means over layers."""
    if result.profile.sizes_known:
        return result
    layers = tuple(replace(layer, num_params=_NOMINAL, macs=_NOMINAL) for layer in result.profile.layers)
    total = _NOMINAL * len(layers)

    def sized(item: LayerMeasurement) -> LayerMeasurement:
        removed = round(_NOMINAL * item.level)
        return replace(item, removed_params=removed, removed_macs=removed)

    return replace(
        result,
        profile=replace(result.profile, layers=layers, num_params=total, macs=total),
        measurements=tuple(map(sized, result.measurements)),
        estimates=tuple(map(sized, result.estimates)),
    )


def check_own_bounds(curve_set: CurveSet, limits: Limits) -> None:
    """Raise InvalidSchedule unless layers with their own bounds can be scheduled, and the bounds are levels."""
    for name, bounds in limits.layers.items():
        curve = curve_set.curve_of(name)
        if curve is None:
            raise InvalidSchedule(f"{name} has no usable measurement, so it takes no limits. Remove those of {name}.")
        scale = curve.scale
        low, high = scale.bounds
        for bound in bounds:
            if bound is not None and not low <= bound <= high:
                span = f"{scale.text(low)} to {scale.text(high)}"
                raise InvalidSchedule(f"The limits of {name} lie from {span}, got {scale.text(bound)}.")


def fixed_levels(curve_set: CurveSet, limits: Limits) -> dict[str, float]:
    """Return the fixed level of each fixed curve, by its first member; InvalidSchedule if that is impossible."""
    levels: dict[str, float] = {}
    for name, wanted in limits.fixed.items():
        curve = curve_set.curve_of(name)
        if curve is None:
            raise InvalidSchedule(
                f"{name} has no usable measurement, so its level cannot be fixed. Remove it from the fixed layers."
            )
        level = curve.scale.fixed(wanted, curve.layer)
        if levels.setdefault(curve.layer, level) != level:
            raise InvalidSchedule(
                f"{name} shares its channels with {curve.layer}: one level holds for both, got {level:g} and "
                f"{levels[curve.layer]:g}."
            )
    return levels
