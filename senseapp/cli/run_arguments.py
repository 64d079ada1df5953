"""From the arguments of ``analyze`` to the settings of a run.

The compression on the command line: arguments derived from the options of all compressions, and its settings.
"""

from __future__ import annotations

import argparse
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Literal

from senseapp.compressions import (
    CompressionConfig,
    CompressionDescription,
    Option,
    all_descriptions,
    get,
    names,
    options_of,
    parse_numbers,
)
from senseapp.core.errors import InvalidCheckpoint, InvalidDataset, InvalidSpec
from senseapp.records.spec import WITHOUT_LABELS, DataSpec, ModelSpec, RunSpec, SensitivitySpec

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
    """Return the settings of the compression that the arguments name."""
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


def run_spec_from(arguments: argparse.Namespace) -> RunSpec:
    """Return the run that the arguments of ``analyze`` describe.

    Raises:
        InvalidInput: an argument is out of range, contradicts another, or names what does not exist.
    """
    return RunSpec(model=_model(arguments), data=_data(arguments), sensitivity=_sensitivity(arguments))


def _model(arguments: argparse.Namespace) -> ModelSpec:
    from senseapp.models.catalogue import parse_model  # reads the catalogue, which the other commands do without

    checkpoint = ""
    if arguments.checkpoint:
        checkpoint = str(_existing(arguments.checkpoint, error=InvalidCheckpoint, what="checkpoint"))
    if arguments.ema and not checkpoint:
        raise InvalidSpec("--ema chooses between the weights in a checkpoint, so it needs one. Add --checkpoint FILE.")
    if arguments.model == "auto" and not checkpoint:
        raise InvalidSpec("--model auto recognises a checkpoint, so it needs one. Add --checkpoint FILE.")
    return replace(
        parse_model(arguments.model),
        checkpoint=checkpoint,
        use_ema=arguments.ema,
        pretrained=arguments.pretrained,
        num_classes=arguments.num_classes,
        in_chans=arguments.in_chans,
        img_size=arguments.img_size,
        task=arguments.task,
    )


def _data(arguments: argparse.Namespace) -> DataSpec:
    preparation = DataSpec(
        mean=_numbers(arguments.mean, what="--mean"),
        std=_numbers(arguments.std, what="--std"),
        crop_pct=arguments.crop_pct,
        channel_order=arguments.channel_order,
        preparation="auto" if _is_to_be_chosen(arguments) else "given",
    )
    if arguments.data in ("demo", "random"):
        if arguments.labels:
            raise InvalidSpec(f"--labels is for a folder or archive of images, and --data is {arguments.data}.")
        return replace(preparation, kind=arguments.data)
    library, slash, name = arguments.data.partition("/")
    if library == "torchvision" and slash:
        return replace(preparation, kind="torchvision", name=name, labels=_not_a_table(arguments.labels))
    path = _existing(arguments.data, error=InvalidDataset, what="folder or archive of images")
    kind: Literal["folder", "archive"] = "folder" if path.is_dir() else "archive"
    return replace(preparation, kind=kind, path=str(path), labels=arguments.labels)


def _is_to_be_chosen(arguments: argparse.Namespace) -> bool:
    """Return whether the images choose their preprocessing: a checkpoint does not say which it was trained with."""
    if arguments.preprocessing == "auto" and not arguments.checkpoint:
        raise InvalidSpec(
            "--preprocessing auto is for a checkpoint; published weights say how their images are prepared. "
            "Add --checkpoint FILE, or leave it out."
        )
    return bool(arguments.checkpoint) and arguments.preprocessing != "own"


def _not_a_table(labels: str) -> str:
    if labels not in ("", WITHOUT_LABELS):
        raise InvalidSpec(f"An image set brings its own labels: leave --labels out, or give none, got {labels!r}.")
    return labels


def _existing(text: str, *, error: type[InvalidCheckpoint] | type[InvalidDataset], what: str) -> Path:
    path = Path(text).expanduser()
    if not path.exists():
        raise error(f"There is no {what} at {text}. Check the path.")
    return path.resolve()


def _sensitivity(arguments: argparse.Namespace) -> SensitivitySpec:
    compression = config_from(arguments)
    return SensitivitySpec(
        compression=compression,
        levels=compression.scale.parse(arguments.levels, what="--levels"),
        metric=arguments.metric,
        num_samples=arguments.samples,
        batch_size=arguments.batch_size,
        layers=tuple(pattern.strip() for pattern in arguments.layers.split(",") if pattern.strip()),
        mode=arguments.mode,
        precision=arguments.precision,
        device=arguments.device,
        until_settled=arguments.until_settled,
        seed=arguments.seed,
    )


def _numbers(text: str, *, what: str) -> tuple[float, ...]:
    return parse_numbers(text, what=what) if text else ()
