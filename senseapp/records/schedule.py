"""Schedules: budgets, limits, one level per layer, and the proof by measurement."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

from senseapp.core.errors import InvalidSchedule, InvalidSpec, check_choice
from senseapp.core.texts import first_names
from senseapp.descriptions import DENSE_BITS, BudgetKind, all_descriptions, get, names
from senseapp.metrics import MetricChange
from senseapp.records.measurement import change_in
from senseapp.records.profile import ModelProfile

Adapting = Literal["off", "minutes", "best"]
"""How much time goes into new weights for compressed layers: none, closed forms, or closed forms and then descent."""

Delivered = Literal["", "compressed", "repaired", "adapted"]
"""Which form of a compressed model is kept: as compression leaves it, repaired without training, or with weights that
make up for what it lost; "" if unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceBudget:
    """How much must go.

    Attributes:
        kind: what is counted: non-zero weights, bytes of weights, multiply-accumulates, or average bits.
        target: the fraction removed of it, in (0, 1); for ``bits`` the average number of bits, from the
            fewest of any compression (2 of quantization) to below 32.
    """

    kind: BudgetKind
    target: float

    def __post_init__(self) -> None:
        check_choice("The budget must be", self.kind, get_args(BudgetKind))
        low, high, unit = 0.0, 1.0, "a fraction from 0 to below 1"
        if self.kind == "bits":
            low, high = min(each.scale.bounds[0] for each in all_descriptions() if each.sets_bits), DENSE_BITS
            unit = f"average bits from {low:g} to {high:g}"
        if not math.isfinite(self.target) or not low <= self.target < high:
            raise InvalidSpec(f"The target of a {self.kind} budget is {unit}, got {self.target}.")


_CLEARLY_MORE = 0.02  # of what a budget removes

Bounds = tuple[float | None, float | None]
"""The least and the greatest level of a layer; None means no bound."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds on the levels of layers, and levels that a person has fixed.

    Attributes:
        min_level, max_level: of every layer; fractions, or bits (32 for untouched weights); None means no bound.
        layers: bounds of single layers by name, in place of those of every layer.
        fixed: layer name to its level; 0 leaves the layer alone. Bounds do not hold for fixed layers.
    """

    min_level: float | None = None
    max_level: float | None = None
    layers: Mapping[str, Bounds] = field(default_factory=dict)
    fixed: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, (least, most) in {"": (self.min_level, self.max_level), **self.layers}.items():
            low, high = -math.inf if least is None else least, math.inf if most is None else most
            if not low <= high:
                what = f"level of {name}" if name else "level"
                raise InvalidSpec(f"The minimum {what} must not be above the maximum, got {low:g} and {high:g}.")

    def bounds_of(
        self, members: Iterable[str], *, low: float = -math.inf, high: float = math.inf
    ) -> tuple[float, float]:
        """Return the least and the greatest level of coupled layers; ``low`` and ``high`` stand in for no bound."""
        least, most = next(
            (self.layers[member] for member in members if member in self.layers), (self.min_level, self.max_level)
        )
        return (low if least is None else least), (high if most is None else most)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleEntry:
    """The choice for one layer, or for a coupled group by its first member.

    Attributes:
        compression: ``sparsity``, ``pruning``, ``quantization``, or ``none`` if the layer is left alone.
        level: fraction or bits; 0 for ``none``.
        predicted_damage: what it loses alone.
        locked: whether a person fixed it.
    """

    layer: str
    members: tuple[str, ...]
    compression: str
    level: float
    predicted_damage: float = 0.0
    locked: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """One level per layer of one model.

    Attributes:
        model: the title of the model it belongs to.
        method: ``optimal``, ``gamma``, ``uniform`` or ``manual``, which has no budget.
        entries: one per layer or coupled group, in execution order.
        predicted_damage: of all entries together, in ``metric``: their sum, and what they do beyond it where known.
        achieved: what is removed or kept in the unit of each budget kind, predicted from the layers' costs.
        file_notes: those notes that say what target files, which hold one number per layer, do not.
    """

    model: str
    method: str
    entries: tuple[ScheduleEntry, ...]
    budget: ResourceBudget | None = None
    metric: str = ""
    predicted_damage: float = 0.0
    achieved: dict[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    file_notes: tuple[str, ...] = ()

    @property
    def removes_channels(self) -> bool:
        """Whether tensors become smaller, so that the weights fit another network."""
        kinds = {entry.compression for entry in self.entries} - {"none"}
        return any(get(kind).removes_channels for kind in kinds)

    @property
    def beyond_budget(self) -> str:
        """That it removes clearly more than its budget asks, in a sentence; empty where it does not."""
        if (budget := self.budget) is None or budget.kind == "bits" or self.method != "optimal":
            return ""
        removed = self.achieved.get(budget.kind, 0.0)
        if removed < budget.target + _CLEARLY_MORE:
            return ""
        shares = f"{100 * removed:.0f} % are removed, not {100 * budget.target:.0f} %"
        return f"{shares}: no schedule in between is predicted to harm less."

    def level_of(self, layer: str) -> float | None:
        """Return the level chosen for ``layer`` (also as a member of a group), or None if it is left alone."""
        for entry in self.entries:
            if layer in entry.members and entry.compression != "none":
                return entry.level
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairStep:
    """One form of a compressed model, and what it loses on calibration images that it was not fitted to.

    The title says what was done; the form that did best is ``kept``.
    """

    title: str
    change: MetricChange
    kept: bool = False


ROUNDED_INPUTS = "Inputs of layers are rounded while measuring; a file of weights does not hold that."
"""Note on a schedule that was measured like this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationResult:
    """A schedule applied and measured, beside the uncompressed model and a uniform schedule of equal cost.

    Attributes:
        changes: measured, by metric.
        held_out: whether that was on images that the run has not measured on; else on its own.
        repaired: the same after repair without training; empty if none was asked for.
        uniform: of the uniform schedule of equal cost; empty where there is none.
        uniform_repaired: of that one after the same repair.
        delivered: which of the two was kept and written.
        delivered_reason: one sentence on why; empty where no repair was asked for.
        uniform_delivered: which of the two would have been kept of the uniform schedule; empty where there is none.
        uniform_achieved: what it removes or keeps, as in :class:`Schedule`, which may be more than in ``schedule``.
        adapting: whether the weights of compressed layers were adapted; then ``repaired`` is what did best of that.
        steps: what was tried in place of the compressed model, which comes first.
        tried: how many alternatives, this one included, held-out images compared.
        predicted: damage, in the schedule's own metric.
        sizes: figures before and after: ``params``, ``zeros``, ``macs`` (after: without those of zeros in sparse
            layers), and ``file_bytes`` (of the plain state dict, as a file).
        files: bytes on the disk of each file of the compressed model, by suffix; the plain state dict first.
    """

    schedule: Schedule
    changes: tuple[MetricChange, ...]
    repaired: tuple[MetricChange, ...] = ()
    uniform: tuple[MetricChange, ...] = ()
    uniform_repaired: tuple[MetricChange, ...] = ()
    predicted: float = 0.0
    sizes: dict[str, tuple[float, float]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    files: dict[str, int] = field(default_factory=dict)
    delivered: Delivered = "compressed"
    delivered_reason: str = ""
    uniform_delivered: Delivered = ""
    uniform_achieved: dict[str, float] = field(default_factory=dict)
    adapting: Adapting = "off"
    steps: tuple[RepairStep, ...] = ()
    tried: int = 1
    held_out: bool = True

    @property
    def also_rounded(self) -> str:
        """What else was compressed than files of weights hold, to follow the number of images; empty for nothing."""
        return ", with inputs of layers rounded too" if ROUNDED_INPUTS in self.notes else ""

    @property
    def keeps_repair(self) -> bool:
        """Whether the model that was kept is the repaired or adapted one."""
        return self.delivered in ("repaired", "adapted")

    @property
    def repair_words(self) -> tuple[str, str]:
        """Noun and participle for how the model of :attr:`repaired` was made: ``repair``, ``repaired``."""
        return ("repair", "repaired") if self.adapting == "off" else ("adapting", "adapted")

    @property
    def kept_changes(self) -> tuple[MetricChange, ...]:
        """Changes of the model that was kept, by metric."""
        return self.repaired if self.keeps_repair else self.changes

    @property
    def uniform_kept_changes(self) -> tuple[MetricChange, ...]:
        """The same of the uniform schedule; empty where there is none."""
        return self.uniform_repaired if self.uniform_delivered in ("repaired", "adapted") else self.uniform


@dataclass(frozen=True, slots=True, kw_only=True)
class TriedTarget:
    """One schedule that a search measured; ``figure`` is what it removes, or its average bits.

    Changes by metric are those on the curves' images; after repair where that did better.
    """

    figure: float
    changes: tuple[MetricChange, ...]
    repaired: bool = False

    def change(self, metric: str) -> MetricChange | None:
        """Return the change in ``metric``."""
        return change_in(self.changes, metric)


@dataclass(frozen=True, slots=True, kw_only=True)
class StrongestFound:
    """The strongest schedule whose measured drop is within ``allowed_drop``, in the unit of the schedule's metric.

    ``tried`` are all that were measured, in the order of the search; ``repaired`` ones where that did better.
    """

    schedule: Schedule
    allowed_drop: float
    repaired: bool
    tried: tuple[TriedTarget, ...]


def check_schedule(schedule: Schedule, profile: ModelProfile) -> None:
    """Raise InvalidSchedule unless every name is a layer of ``profile`` and every level is in range."""
    known = {layer.name for layer in profile.layers}
    named = {name: None for entry in schedule.entries for name in (entry.layer, *entry.members)}
    missing = [name for name in named if name not in known]
    if missing:
        raise InvalidSchedule(
            f"This schedule is for another model: {len(missing)} of its {len(named)} layers do not exist in "
            f"{profile.title} ({first_names(missing)}). Choose the schedule that was made for this model."
        )
    for entry in schedule.entries:
        if entry.compression == "none":
            continue
        if entry.compression not in names():
            raise InvalidSchedule(
                f"The compression of {entry.layer} must be one of {', '.join(names())} or none, "
                f"got {entry.compression!r}."
            )
        scale = get(entry.compression).scale
        if not scale.allows(entry.level):
            raise InvalidSchedule(
                f"The {entry.compression} level of {entry.layer} must be {scale.rule}, got {entry.level}."
            )
