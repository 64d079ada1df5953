"""The words of the interface: one label and plain sentence for each compression and state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from senseapp.results import RunState


@dataclass(frozen=True, slots=True, kw_only=True)
class CompressionView:
    """How a compression is shown.

    Attributes:
        kind: the engine's name.
        label: the name people see.
        line: what it does, in one plain line.
        at: phrase of a level in a question, to be formatted with ``level``.
        level_axis: title of an axis of levels, with its unit.
        choices: levels offered, weakest first, in engine units.
        default: levels chosen at first.
        levels_help: what a level means.
    """

    kind: str
    label: str
    line: str
    at: str
    level_axis: str
    choices: tuple[float, ...]
    default: tuple[float, ...]
    levels_help: str


_FRACTIONS = (0.1, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.7, 0.75, 0.8, 0.9, 0.95)
_COMPRESSIONS = (
    CompressionView(
        kind="sparsity",
        label="Sparsity",
        line="Set the smallest weights to zero",
        at="with {level} of its weights at zero",
        level_axis="Weights at zero (%)",
        choices=_FRACTIONS,
        default=(0.25, 0.5, 0.75),
        levels_help="Share of a layer's weights that is set to zero. Each level is measured on its own.",
    ),
    CompressionView(
        kind="pruning",
        label="Pruning",
        line="Remove whole channels",
        at="with {level} of its channels removed",
        level_axis="Channels removed (%)",
        choices=_FRACTIONS[:-1],
        default=(0.1, 0.3, 0.5),
        levels_help="Share of a layer's output channels that is removed. Layers that depend on each other go together.",
    ),
    CompressionView(
        kind="quantization",
        label="Quantization",
        line="Store weights with fewer bits",
        at="with its weights in {level}",
        level_axis="Bits per weight",
        choices=(8.0, 7.0, 6.0, 5.0, 4.0, 3.0, 2.0),
        default=(8.0, 4.0, 2.0),
        levels_help="Number of bits for each weight of a layer. Each level is measured on its own.",
    ),
)
COMPRESSIONS = {view.kind: view for view in _COMPRESSIONS}


def strength(kind: str, value: float) -> float:
    """Return a number that grows with the strength of compression: the fraction, or minus the bits."""
    return -value if kind == "quantization" else value


def usual_level(kind: str, levels: Sequence[float]) -> float:
    """Return the level to show first: the one nearest to 4 bits, or to half of the weights or channels."""
    usual = 4.0 if kind == "quantization" else 0.5
    return min(levels, key=lambda level: (abs(level - usual), strength(kind, level)))


@dataclass(frozen=True, slots=True, kw_only=True)
class StateView:
    """How a run's state is shown: a word, a badge colour and an icon as the second cue."""

    label: str
    color: str
    icon: str


STATES = {
    RunState.QUEUED: StateView(label="Waiting", color="gray", icon=":material/hourglass_empty:"),
    RunState.RUNNING: StateView(label="Running", color="blue", icon=":material/play_circle:"),
    RunState.DONE: StateView(label="Finished", color="green", icon=":material/check_circle:"),
    RunState.CANCELLED: StateView(label="Cancelled", color="gray", icon=":material/cancel:"),
    RunState.FAILED: StateView(label="Failed", color="red", icon=":material/error:"),
    RunState.INTERRUPTED: StateView(label="Interrupted", color="orange", icon=":material/pause_circle:"),
}
