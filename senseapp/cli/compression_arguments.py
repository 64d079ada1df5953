"""The compression on the command line: arguments derived from the options of all compressions, and its settings."""

from __future__ import annotations

import argparse
from dataclasses import fields
from typing import Any

from senseapp.compressions import (
    CompressionConfig,
    CompressionDescription,
    Option,
    all_descriptions,
    get,
    names,
    options_of,
)
from senseapp.errors import InvalidSpec
from senseapp.spec import DataSpec, ModelSpec, SensitivitySpec

_TAKEN = {each.name for spec in (ModelSpec, DataSpec, SensitivitySpec) for each in fields(spec)}
"""Settings of every run, whose names are flags already."""


def add_compression_arguments(group: argparse._ArgumentGroup) -> None:
    """Add ``--compression``, ``--levels`` and a flag for each option; one of the same name serves several."""
    units: dict[str, list[str]] = {}
    for each in all_descriptions():
        units.setdefault(each.scale.unit, []).append(each.name)
    levels = ", or ".join(f"{unit} ({', '.join(kinds)})" for unit, kinds in units.items())
    group.add_argument("--compression", required=True, choices=names())
    group.add_argument("--levels", required=True, metavar="L,..", help=levels)
    for flag, meanings in _flags(takes_value=True).items():
        group.add_argument(flag, metavar=flag[2].upper(), help="; ".join(meanings))
    for flag, meanings in _flags(takes_value=False).items():
        group.add_argument(flag, action="store_true", help="; ".join(meanings))


def config_from(arguments: argparse.Namespace) -> CompressionConfig:
    """Return the settings of the compression that the arguments name.

    Raises:
        InvalidSpec: an option is out of range, contradicts another, or means nothing for this compression.
    """
    description = get(arguments.compression)
    options = options_of(description.config)
    own = {flag for name, option in options.items() for flag in (_value_flag(name, option), *option.flag_of)}
    for flag in (*_flags(takes_value=True), *_flags(takes_value=False)):
        if _given(arguments, flag) and flag not in own:  # ignoring it would measure something else
            raise InvalidSpec(f"{flag} has no meaning for {description.name}. Leave it out.")
    config = description.config(
        **{name: value for name, option in options.items() if (value := _value(arguments, name, option)) is not None}
    )
    values = {name: getattr(config, name) for name in options}
    for name, option in options.items():
        if _value(arguments, name, option) is not None and not option.when(values):
            raise InvalidSpec(f"{_value_flag(name, option)} has no meaning beside these settings. Leave it out.")
    return config


def _flags(*, takes_value: bool) -> dict[str, list[str]]:
    """Return what each flag means, for every compression that has it."""
    found: dict[str, list[str]] = {}
    for description in all_descriptions():
        for flag, meaning in _flags_of(description, takes_value=takes_value):
            found.setdefault(flag, []).append(f"{description.name}: {meaning}")
    return found


def _flags_of(description: CompressionDescription, *, takes_value: bool) -> list[tuple[str, str]]:
    options = options_of(description.config)
    if takes_value:
        flags = ((_value_flag(name, option), ", ".join(map(str, option.choices))) for name, option in options.items())
        return [(flag, choices) for flag, choices in flags if flag]
    return [
        (flag, f"{option.title.lower()}: {option.choices[value].lower()}")
        for option in options.values()
        for flag, value in option.flag_of.items()
    ]


def _value_flag(name: str, option: Option) -> str:
    """Return the flag that takes a value of an option; empty for yes or no, where a flag without a value stands."""
    if set(option.choices) == {True, False}:
        return ""
    return f"--{'compression-' if name in _TAKEN else ''}{name.replace('_', '-')}"


def _given(arguments: argparse.Namespace, flag: str) -> Any:
    return getattr(arguments, flag.removeprefix("--").replace("-", "_")) if flag else None


def _value(arguments: argparse.Namespace, name: str, option: Option) -> Any:
    """Return what was asked for of one option; None for nothing."""
    own = _value_flag(name, option)
    asked = _given(arguments, own) or None
    for flag, value in option.flag_of.items():
        if not _given(arguments, flag):
            continue
        if asked not in (None, value):
            raise InvalidSpec(f"{flag} contradicts {own} {asked}. Give one of them.")
        asked = value
    return asked
