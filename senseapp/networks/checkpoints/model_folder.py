"""A network as a folder or zip of two files, as the Hugging Face hub keeps it: ``config.json`` and its weights.

What timm writes into ``config.json`` is read as its ``local-dir:`` models are: the architecture, the arguments that it
was built with, the preparation of images and the names of classes. Values are checked and nothing else of the file is
used; in particular no path, no address and no name of a function.
"""

import inspect
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any

import timm

from senseapp.core.errors import InvalidCheckpoint
from senseapp.core.foreign_values import BadValue, items, mapping, number, read_json, text, truth, whole
from senseapp.core.foreign_zip import MOST_UNPACKED, ZIP_DAMAGE, ForeignZip, TooManyMembers
from senseapp.core.texts import listed, printable_text
from senseapp.networks.checkpoints.weights_file import CHECKPOINT_SUFFIXES, damaged, refuse_program

CONFIG_FILE = "config.json"
_WEIGHTS = ("model.safetensors", "pytorch_model.safetensors", "pytorch_model.bin")
_MOST_CONFIG_BYTES = 4_000_000  # 21,000 class names are 1 MB
_MOST_MEMBERS = 1000  # files of a folder, of which two are read
_SHARD = re.compile(r"-\d+-of-\d+\.")
_ARGUMENT = re.compile(r"[a-z][a-z0-9_]{0,60}")
_LARGEST_NUMBER = 100_000  # widths and depths of networks are below; a larger one would take all memory to build
_MOST_CLASSES = 100_000  # the largest classifiers of the libraries have 21,843
_LONGEST_TEXT = 200  # characters of a class name or a setting


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Contents of a ``config.json``.

    Attributes:
        architecture: of timm; empty where another library wrote the file.
        arguments: that timm builds it with, its preparation of images among them.
        class_names: one per output; empty without them.
        written_for: the class of another library that the weights are for; empty for timm.
    """

    architecture: str = ""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    class_names: tuple[str, ...] = ()
    written_for: str = ""

    @property
    def side(self) -> int | None:
        """Height and width in pixels that the network is built for, where they are equal and said."""
        img_size = self.arguments.get("img_size")
        sides = set(img_size) if isinstance(img_size, list) else {img_size}
        side = sides.pop() if len(sides) == 1 else None
        return side if isinstance(side, int) else None


def is_model_folder(path: Path) -> bool:
    """Return whether ``path`` is a folder, or an archive by its name, rather than one file of weights."""
    return path.is_dir() or path.suffix.lower() == ".zip"


@contextmanager
def opened_model_folder(path: Path) -> Iterator[tuple[Path, ModelConfig | None]]:
    """Yield the file of weights in the folder or zip at ``path``, and its configuration if there is one.

    The weights of a zip are unpacked beside other temporary files, and removed at the end.

    Raises InvalidCheckpoint if it is damaged, holds no weights or several, or its ``config.json`` cannot be used.
    """
    if path.is_dir():
        yield _in_folder(path)
        return
    if not path.is_file():
        raise InvalidCheckpoint(f"There is no checkpoint file named {path.name}. Upload it again.")
    refuse_program(path)
    with tempfile.TemporaryDirectory(prefix="senseapp-", ignore_cleanup_errors=True) as unpacked:
        yield _unpacked(path, Path(unpacked))


def _in_folder(folder: Path) -> tuple[Path, ModelConfig | None]:
    try:
        names = [each.name for each in folder.iterdir() if each.is_file()]
        weights = folder / _weights_among(names, of=folder.name)
        config = folder / CONFIG_FILE
        if not config.is_file():
            return weights, None
        with config.open("rb") as stream:
            return weights, read_config(stream.read(_MOST_CONFIG_BYTES + 1), of=folder.name)
    except OSError as error:
        raise InvalidCheckpoint(f"The folder {folder.name} cannot be read ({error.strerror}).") from error


def _unpacked(path: Path, target: Path) -> tuple[Path, ModelConfig | None]:
    try:
        with closing(ForeignZip(path, most_members=_MOST_MEMBERS)) as archive:
            if archive.total_bytes > MOST_UNPACKED * path.stat().st_size + _MOST_CONFIG_BYTES:
                raise InvalidCheckpoint(
                    f"{path.name} would unpack to more than {MOST_UNPACKED} times its size. Pack the weights without "
                    "compression, or choose the .safetensors file itself."
                )
            members = {each.filename: each for each in archive.members if not each.is_dir()}
            if any(PurePosixPath(name).name == "data.pkl" for name in members):
                raise InvalidCheckpoint(
                    f"A checkpoint ends in one of {', '.join(CHECKPOINT_SUFFIXES)}, got {path.name}, which torch.save "
                    "wrote. Rename it."
                )
            top = _top_folder(members)
            inside = {name.removeprefix(top): each for name, each in members.items() if name.startswith(top)}
            found = _weights_among([name for name in inside if "/" not in name], of=path.name)
            config = inside.get(CONFIG_FILE)
            if config is not None and config.file_size > _MOST_CONFIG_BYTES:
                raise InvalidCheckpoint(f"{CONFIG_FILE} in {path.name} has more than {_MOST_CONFIG_BYTES:,} bytes.")
            weights = target / f"model{PurePosixPath(found).suffix.lower()}"  # no path from a name in the archive
            with weights.open("xb") as file:
                for chunk in archive.chunks(inside[found]):
                    file.write(chunk)
            return weights, None if config is None else read_config(archive.read(config), of=path.name)
    except TooManyMembers as error:
        raise InvalidCheckpoint(
            f"{path.name} holds more than {_MOST_MEMBERS:,} files; a network is {CONFIG_FILE} and one file of weights."
        ) from error
    except ZIP_DAMAGE as error:
        raise damaged(path, error) from error


def _top_folder(names: Mapping[str, object]) -> str:
    """Return the folder, with its slash, that holds ``config.json`` or else the weights: the one nearest to the top."""
    wanted = [name for name in names if PurePosixPath(name).name == CONFIG_FILE] or [
        name for name in names if PurePosixPath(name).suffix.lower() in CHECKPOINT_SUFFIXES
    ]
    nearest = min(wanted, key=lambda name: (name.count("/"), name), default="")
    return nearest[: nearest.rfind("/") + 1]


def _weights_among(names: Sequence[str], *, of: str) -> str:
    """Return the one file of weights; timm's and Transformers' own names go before others."""
    for usual in _WEIGHTS:
        if usual in names:
            return usual
    found = [name for name in names if PurePosixPath(name).suffix.lower() in CHECKPOINT_SUFFIXES]
    if any(_SHARD.search(name) for name in found):
        raise InvalidCheckpoint(
            f"The weights in {of} are in several parts ({listed(sorted(found))}). Save them as one file: "
            "model.save_pretrained(folder, max_shard_size='100GB')."
        )
    if len(found) != 1:
        held = listed(sorted(found or names)) or "nothing"
        what = "several files of weights" if found else "no file of weights"
        raise InvalidCheckpoint(
            f"{of} holds {what} ({held}). A network is {CONFIG_FILE} and {_WEIGHTS[0]}, or one file of weights alone."
        )
    return found[0]


def read_config(content: bytes, *, of: str) -> ModelConfig:
    """Read the bytes of a ``config.json``; ``of`` names its folder in messages.

    Raises InvalidCheckpoint if it is no JSON object, or holds a value that no network is built with.
    """
    try:
        if len(content) > _MOST_CONFIG_BYTES:
            raise ValueError(f"it has more than {_MOST_CONFIG_BYTES:,} bytes")
        config = mapping(read_json(content), "it")
        return _of_timm(config) if isinstance(config.get("architecture"), str) else _of_another(config)
    except ValueError as error:
        reason = printable_text(str(error))[:_LONGEST_TEXT].rstrip(".")
        raise InvalidCheckpoint(
            f"{CONFIG_FILE} in {of} cannot be used: {reason}. Save the folder again with "
            "timm.models.save_for_hf(model, folder), or choose the file of weights alone."
        ) from error


def _of_timm(config: Mapping[str, Any]) -> ModelConfig:
    """Return timm's form, the older one included, which has all in one object."""
    name = config["architecture"].partition(".")[0]  # what follows names published weights
    if not timm.is_model(name):
        raise ValueError(f"timm {timm.__version__} has no architecture named “{printable_text(name)[:80]}”")
    prepared = mapping(config.get("pretrained_cfg", config), "pretrained_cfg")
    arguments = mapping(config.get("model_args") or {}, "model_args")
    told = {"num_classes": config["num_classes"]} if "num_classes" in config else {}
    return ModelConfig(
        architecture=name,
        arguments={**_arguments(arguments), "pretrained_cfg_overlay": _preparation({**prepared, **told})},
        class_names=_names(config.get("label_names", prepared.get("label_names", prepared.get("labels", ())))),
    )


def _of_another(config: Mapping[str, Any]) -> ModelConfig:
    """Return the class that Transformers, or another library, builds from the file, and the names of its classes."""
    classes = config.get("architectures")
    named = classes[0] if isinstance(classes, list) and classes else config.get("model_type")
    labels = config.get("id2label")
    ordered: list[Any] = []
    if isinstance(labels, dict) and len(labels) <= _MOST_CLASSES:
        ordered = [labels.get(str(index)) for index in range(len(labels))]
    return ModelConfig(
        class_names=_names(ordered),
        written_for=printable_text(named)[:80] if isinstance(named, str) else "another library",
    )


def _names(found: object) -> tuple[str, ...]:
    if not isinstance(found, list) or len(found) > _MOST_CLASSES or not all(isinstance(each, str) for each in found):
        return ()
    return tuple(printable_text(each)[:_LONGEST_TEXT] for each in found)


def _arguments(found: Mapping[str, Any]) -> dict[str, Any]:
    for key, value in found.items():
        if not _ARGUMENT.fullmatch(key) or key in _not_for_files():
            raise ValueError(f"“{printable_text(key)[:80]}” is no argument of an architecture")
        _check_value(key, value)
    return dict(found)


@cache
def _not_for_files() -> frozenset[str]:
    """Return the arguments that decide where weights come from, or that change what the network returns."""
    return frozenset(
        {
            *inspect.signature(timm.create_model).parameters,
            *("features_only", "out_indices", "feature_cfg", "model_cfg", "kwargs_filter", "device", "dtype"),
            *("pretrained_strict", "pretrained_filter_fn", "pretrained_custom_load", "pretrained_model_args"),
        }
    )


def _check_value(key: str, value: object) -> None:
    """Require a plain value of a size that networks have, or a short list of such."""
    if isinstance(value, list):
        if len(value) > 64:  # entries of a list, as one for each block
            raise ValueError(f"{key} lists {len(value)} values")
        for each in value:
            _check_value(key, each)
    elif isinstance(value, str):
        if len(value) > _LONGEST_TEXT:
            raise ValueError(f"{key} is a text of {len(value)} characters")
    elif value is not None and not isinstance(value, bool):
        number(value, key, least=-_LARGEST_NUMBER, most=_LARGEST_NUMBER)


def _size(value: object, key: str) -> tuple[int, ...]:
    found = tuple(whole(each, key, least=1, most=_LARGEST_NUMBER) for each in items(value, key))
    if len(found) != 3:
        raise BadValue(f"{key} is a list of 3 numbers")
    return found


def _statistic(value: object, key: str) -> tuple[float, ...]:
    least = 1e-6 if key == "std" else 0.0
    found = tuple(number(each, key, least=least, most=_LARGEST_NUMBER) for each in items(value, key))
    if not 0 < len(found) <= 16:  # multispectral pictures have up to 13
        raise BadValue(f"{key} is a list of one number, or of one for each channel")
    return found


def _share(value: object, key: str) -> float:
    return number(value, key, least=0.01, most=1)  # of a picture, that a crop leaves


_PREPARATION: Mapping[str, Callable[[object, str], object]] = {
    **dict.fromkeys(("input_size", "test_input_size"), _size),
    **dict.fromkeys(("mean", "std"), _statistic),
    **dict.fromkeys(("crop_pct", "test_crop_pct"), _share),
    **dict.fromkeys(("interpolation", "crop_mode"), text),
    "num_classes": lambda value, key: whole(value, key, most=_MOST_CLASSES),
    "fixed_input_size": truth,
}
"""How images are prepared and what the classifier is, in timm's words: the readers of the entries that are used."""


def _preparation(found: Mapping[str, Any]) -> dict[str, Any]:
    return {key: read(found[key], key) for key, read in _PREPARATION.items() if found.get(key) is not None}
