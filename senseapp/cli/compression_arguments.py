"""The compression on the command line: flags made of the options of all compressions, and its settings."""

import argparse
from collections.abc import Iterator
from dataclasses import fields
from typing import Any, NamedTuple

from senseapp.core.errors import InvalidSpec
from senseapp.core.registry import grouped
from senseapp.descriptions import (
    CompressionConfig,
    CompressionDescription,
    Option,
    all_descriptions,
    get,
    names,
    options_of,
)
from senseapp.descriptions.runtimes import RUNTIMES
from senseapp.descriptions.targets import TARGETS, USUAL_TARGET
from senseapp.records.goal import GOALS
from senseapp.records.spec import DataSpec, ModelSpec, RunSpec, SensitivitySpec

_TAKEN = {each.name for spec in (ModelSpec, DataSpec, SensitivitySpec) for each in fields(spec)}
"""Settings of every run, whose names are flags already."""


class _Flag(NamedTuple):
    """A flag that sets an option of a compression: to ``value``, or, where that is None, to what stands behind it."""

    text: str
    setting: str
    value: Any
    meaning: str

    def given(self, arguments: argparse.Namespace) -> Any:
        """Return the value on the command line, if there is one."""
        return getattr(arguments, self.text.removeprefix("--").replace("-", "_")) or None


def add_compression_arguments(group: argparse._ArgumentGroup) -> None:
    """Add ``--goal``, ``--target``, ``--compression``, ``--levels`` and flags of options; one may serve several."""
    units = grouped((each.scale.unit, each.name) for each in all_descriptions())
    levels = ", or ".join(f"{unit} ({', '.join(kinds)})" for unit, kinds in units.items())
    group.add_argument(
        "--goal",
        default=RunSpec().goal,
        choices=list(GOALS),
        help="what the run is for, which chooses compression, levels and metric where none is given: "
        + "; ".join(f"{goal}, {words.lower()}" for goal, words in GOALS.items())
        + f" (default: {RunSpec().goal})",
    )
    group.add_argument(
        "--target",
        default=USUAL_TARGET,
        type=installed,
        choices=list(TARGETS),
        help="where files of the run will run, which chooses their runtime: "
        + "; ".join(f"{name}, {each.label}" for name, each in TARGETS.items())
        + f" (default: {USUAL_TARGET})",
    )
    group.add_argument("--compression", choices=names(), help="default: by the goal")
    group.add_argument("--levels", metavar="L,..", help=f"{levels} (default: by the goal)")
    flags = grouped(
        ((flag.value is not None, flag.text), f"{description.name}: {flag.meaning}")
        for description in all_descriptions()
        for flag in _flags_of(description)
    )
    for (is_switch, text), meanings in sorted(flags.items(), key=lambda entry: entry[0][0]):
        kind: dict[str, Any] = {"action": "store_true"} if is_switch else {"metavar": text[2].upper()}
        group.add_argument(text, help="; ".join(meanings), **kind)


def installed(name: str) -> str:
    """Return the name of a target or a runtime; raise ArgumentTypeError, with how it is added, if it is missing."""
    runtime = TARGETS[name].runtime if name in TARGETS else RUNTIMES.get(name)
    if runtime is not None and not runtime.is_installed:
        raise argparse.ArgumentTypeError(runtime.how_to_add)
    return name


def config_from(arguments: argparse.Namespace, usual: CompressionConfig) -> CompressionConfig:
    """Return the settings of the compression that the arguments name; without a name those of ``usual``.

    Raises InvalidSpec where an option is out of range, contradicts another, or means nothing for this compression.
    """
    description = get(arguments.compression or usual.kind)
    own = list(_flags_of(description))
    for flag in (flag for each in all_descriptions() for flag in _flags_of(each)):
        if flag.given(arguments) and flag.text not in {known.text for known in own}:  # else something else is measured
            raise InvalidSpec(f"{flag.text} has no meaning for {description.name}. Leave it out.")
    options = options_of(description.config)
    asked: dict[str, Any] = {}
    for flag in own:
        if (given := flag.given(arguments)) is None:
            continue
        value = given if flag.value is None else flag.value
        known = asked.setdefault(flag.setting, value)
        if known != value:
            text = _value_flag(flag.setting, options[flag.setting])
            raise InvalidSpec(f"{flag.text} contradicts {text} {known}. Give one of them.")
    held = {} if arguments.compression else {name: getattr(usual, name) for name in options}
    config = description.config(**(held | asked))
    values = {name: getattr(config, name) for name in options}
    for setting in asked:
        if not options[setting].when(values):
            text = _value_flag(setting, options[setting])
            raise InvalidSpec(f"{text} has no meaning beside these settings. Leave it out.")
    return config


def _flags_of(description: CompressionDescription) -> Iterator[_Flag]:
    """Yield the flags of a compression; yes or no have no flag that takes a value."""
    for name, option in options_of(description.config).items():
        if text := _value_flag(name, option):
            yield _Flag(text, name, None, ", ".join(map(str, option.choices)))
        for text, value in option.flag_of.items():
            yield _Flag(text, name, value, f"{option.title.lower()}: {option.choices[value].lower()}")


def _value_flag(name: str, option: Option) -> str:
    if set(option.choices) == {True, False}:
        return ""
    return f"--{'compression-' if name in _TAKEN else ''}{name.replace('_', '-')}"
