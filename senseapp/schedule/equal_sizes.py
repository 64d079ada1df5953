"""Layers whose sizes are unknown count alike."""

from __future__ import annotations

from dataclasses import replace

from senseapp.results import LayerMeasurement, SensitivityResult

EQUAL_SIZES_NOTE = (
    "The sizes of the layers are unknown, so every layer counts alike: what is removed is a mean over layers, not a "
    "share of the weights."
)
_NOMINAL = 1_000_000  # weights and MACs per layer; divisible enough that no level is rounded


def with_equal_sizes(result: SensitivityResult) -> SensitivityResult:
    """Return ``result`` with the same nominal size for every layer; one whose sizes are known comes back as it is.

    Shares of the total are then means over layers, which is all that can be said of an imported table.
    """
    if result.profile.sizes_known:
        return result
    layers = tuple(replace(layer, num_params=_NOMINAL, macs=_NOMINAL) for layer in result.profile.layers)
    total = _NOMINAL * len(layers)
    return replace(
        result,
        profile=replace(result.profile, layers=layers, num_params=total, macs=total),
        measurements=tuple(map(_sized, result.measurements)),
        estimates=tuple(map(_sized, result.estimates)),
    )


def _sized(item: LayerMeasurement) -> LayerMeasurement:
    removed = round(_NOMINAL * item.level)
    return replace(item, removed_params=removed, removed_macs=removed)
