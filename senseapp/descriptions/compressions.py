"""The description of a compression, its settings and their options; everything else is derived from these."""

from __future__ import annotations

from abc import ABC
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import Enum
from typing import Any, ClassVar, Literal, TypeVar

from senseapp.core.errors import InvalidSpec
from senseapp.core.registry import Registry, object_at
from senseapp.descriptions.levels import LevelScale

ValueT = TypeVar("ValueT", bound=str | bool)
_KEY = "option"

BudgetKind = Literal["params", "bytes", "macs", "bits"]
"""What a budget counts: weights that are not zero, bytes of weights, multiply-accumulates, or average bits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One finer choice of a compression; ``choices`` are what people call each value, of a switch "on", then "off".

    Attributes:
        title: in a list of settings, where a switch's label would not do.
        when: returns whether it means anything beside the other values, by field.
        flag_of: a flag of the command line that stands for one value, by its name.
    """

    label: str
    help: str
    choices: Mapping[Any, str]
    switch: bool = False
    title: str
    when: Callable[[Mapping[str, Any]], bool] = lambda values: True
    flag_of: Mapping[str, Any] = field(default_factory=dict)


def option(default: ValueT, *, label: str, title: str = "", **about: Any) -> ValueT:
    """Return a dataclass field with an :class:`Option` of these; its type is that of its default, as for ``field``."""
    found: ValueT = field(default=default, metadata={_KEY: Option(label=label, title=title or label, **about)})
    return found


def options_of(settings: Any) -> dict[str, Option]:
    """Return the options of a settings class or value by the name of their field, in the order declared."""
    return {each.name: each.metadata[_KEY] for each in fields(settings) if _KEY in each.metadata}


class Effect(Enum):
    """Effect on the weights of a layer, which decides the savings of a level and what a file may store."""

    ZEROS = "zeros"
    CHANNELS = "channels"
    BITS = "bits"


class CompressionConfig(ABC):
    """Settings of a compression: a frozen dataclass whose fields are options, see :func:`option`."""

    __slots__ = ()
    kind: ClassVar[str]
    scale: ClassVar[LevelScale]

    def __post_init__(self) -> None:
        for name, option in options_of(self).items():
            value = getattr(self, name)
            if value not in option.choices:
                what = f"{self.kind.capitalize()} {name.replace('_', ' ')}"
                raise InvalidSpec(f"{what} must be one of {', '.join(map(str, option.choices))}, got {value!r}.")

    @property
    def description(self) -> CompressionDescription:
        """The compression that these are settings of."""
        return get(self.kind)

    @property
    def only_level(self) -> tuple[float, str] | None:
        """The one level that these settings have and why; None where they have all."""
        return None

    @property
    def schedule_notes(self) -> tuple[str, ...]:
        """Notes on properties of schedules that target files, with one number per layer, cannot express."""
        return ()

    @property
    def whole_units(self) -> str:
        """What happens to units that are only compressed whole, so that levels are reached in steps; empty if none."""
        return ""

    @property
    def variants(self) -> tuple[tuple[str, CompressionConfig], ...]:
        """Other settings that may do a fragile layer less harm, each with what it is called as a remedy."""
        return ()

    @property
    def scales_per_channel(self) -> bool:
        """Whether repair may give each output channel of a layer a scale of its own."""
        return True

    def check_levels(self, levels: Sequence[float]) -> None:
        """Raise InvalidSpec unless every level can be measured with these settings."""
        self.scale.check(levels)
        if self.only_level is None:
            return
        level, why = self.only_level
        if tuple(levels) != (level,):
            raise InvalidSpec(f"{why}: its only level is {self.scale.shown(level):g}.")


@dataclass(frozen=True, slots=True, kw_only=True)
class CompressionDescription:
    """Everything that is known of one compression.

    Attributes:
        label: the name people see.
        line: what it does, in one plain line.
        at: phrase of a level in a question, to be formatted with ``level``.
        amount: heading of a column of levels.
        effect: what becomes of the weights.
        order: place when several compressions are applied to one network, lowest first.
        partners: names of the compressions that a layer may get as well.
        pays: whom it pays for, in one sentence.
        in_titles: the same in everyday words, for the title of a run; empty for the label.
        when_run: values of options with which a runtime computes; ``run_levels`` are the levels it has then.
        compressor: ``module:name`` of the factory, taking settings and a ``CompressionRequest``; it may load torch.
    """

    config: type[CompressionConfig]
    label: str
    line: str
    at: str
    levels_help: str
    amount: str
    effect: Effect
    order: int
    partners: tuple[str, ...] = ()
    pays: str = ""
    in_titles: str = ""
    when_run: Mapping[str, Any] = field(default_factory=dict)
    run_levels: tuple[float, ...] = ()
    compressor: str

    @property
    def name(self) -> str:
        """What files and the command line call it."""
        return self.config.kind

    @property
    def scale(self) -> LevelScale:
        """Of its levels."""
        return self.config.scale

    @property
    def zeroes_weights(self) -> bool:
        """Whether weights become zero and stay in their tensors."""
        return self.effect is Effect.ZEROS

    @property
    def removes_channels(self) -> bool:
        """Whether tensors become smaller; what neighbouring layers save then overlaps, and layers go in groups."""
        return self.effect is Effect.CHANNELS

    @property
    def pays_when_run(self) -> bool:
        """Whether a file that a runtime runs becomes smaller or faster: zeros in dense tensors change neither."""
        return self.effect is not Effect.ZEROS

    @property
    def sets_bits(self) -> bool:
        """Whether weights stay and take fewer bits each."""
        return self.effect is Effect.BITS

    @property
    def budgets(self) -> tuple[BudgetKind, ...]:
        """The budgets that it can serve, the usual one first."""
        return ("bits", "bytes") if self.sets_bits else ("params", "bytes", "macs")

    @property
    def equal_cost(self) -> BudgetKind:
        """The budget in which a schedule without one is compared with a uniform schedule."""
        return "macs" if self.removes_channels else self.budgets[0]

    def load_compressor(self) -> Callable[..., Any]:
        """Import and return the factory of its compressor."""
        found: Callable[..., Any] = object_at(self.compressor)
        return found


COMPRESSIONS: Registry[CompressionDescription] = Registry(
    "compression",
    group="senseapp.compressions",
    own=(
        "senseapp.compressions.sparsity:SPARSITY",
        "senseapp.compressions.pruning:PRUNING",
        "senseapp.compressions.quantization:QUANTIZATION",
    ),
)
"""All compressions, in the order in which they are offered."""


def get(name: str) -> CompressionDescription:
    """Return a compression by its name; raise InvalidSpec, with the names that there are, if there is none."""
    return COMPRESSIONS.named(name)


def names() -> tuple[str, ...]:
    """Return the names of all compressions, in the order in which they are offered."""
    return tuple(COMPRESSIONS)


def all_descriptions() -> tuple[CompressionDescription, ...]:
    """Return all compressions, in the order in which they are offered."""
    return tuple(COMPRESSIONS.values())
