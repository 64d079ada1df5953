"""Options of a compression as metadata of its settings' fields; pages and the command line are drawn from them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

ValueT = TypeVar("ValueT", bound=str | bool)
_KEY = "option"


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One finer choice of a compression.

    Attributes:
        label: of the control.
        help: one or two sentences on what it means.
        choices: what people call each value, in the order offered; of a switch "on", then "off".
        switch: whether it is shown as a switch.
        title: in a list of settings, where a switch's label would not do.
        when: returns whether it means anything beside the other values, by field.
        flag_of: a flag of the command line that stands for one value, by its name.
    """

    label: str
    help: str
    choices: Mapping[Any, str]
    switch: bool
    title: str
    when: Callable[[Mapping[str, Any]], bool]
    flag_of: Mapping[str, Any]


def option(
    default: ValueT,
    *,
    label: str,
    help: str,
    choices: Mapping[ValueT, str],
    switch: bool = False,
    title: str = "",
    when: Callable[[Mapping[str, Any]], bool] = lambda values: True,
    flag_of: Mapping[str, ValueT] | None = None,
) -> ValueT:
    """Return a dataclass field with an :class:`Option`; its type is that of its default, as for ``field``."""
    about = Option(
        label=label, help=help, choices=choices, switch=switch, title=title or label, when=when, flag_of=flag_of or {}
    )
    found: ValueT = field(default=default, metadata={_KEY: about})
    return found


def options_of(settings: Any) -> dict[str, Option]:
    """Return the options of a settings class or value by the name of their field, in the order declared."""
    return {each.name: each.metadata[_KEY] for each in fields(settings) if _KEY in each.metadata}
