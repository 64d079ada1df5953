"""From the arguments of ``analyze`` to the settings of a run."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Literal

from senseapp.cli.compression_arguments import config_from
from senseapp.errors import InvalidCheckpoint, InvalidDataset, InvalidSpec
from senseapp.spec import (
    WITHOUT_LABELS,
    DataSpec,
    ModelSpec,
    RunSpec,
    SensitivitySpec,
    parse_numbers,
)


def run_spec_from(arguments: argparse.Namespace) -> RunSpec:
    """Return the run that the arguments of ``analyze`` describe.

    Raises:
        InvalidInput: an argument is out of range, contradicts another, or names what does not exist.
    """
    return RunSpec(model=_model(arguments), data=_data(arguments), sensitivity=_sensitivity(arguments))


def _model(arguments: argparse.Namespace) -> ModelSpec:
    from senseapp.models.names import parse_model  # reads the catalogue, which the other commands do without

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
