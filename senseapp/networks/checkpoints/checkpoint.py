"""An uploaded weights file as named tensors, with notes for the user; code in it is never run."""

import io
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from senseapp.core.errors import InvalidCheckpoint
from senseapp.core.foreign_zip import ZIP_DAMAGE
from senseapp.core.texts import first_names
from senseapp.networks.checkpoints.model_folder import ModelConfig, is_model_folder, opened_model_folder
from senseapp.networks.checkpoints.parametrizations import plain_weights
from senseapp.networks.checkpoints.pickled import Record
from senseapp.networks.checkpoints.stored_tensors import Stored, TensorFile
from senseapp.networks.checkpoints.weights_file import (
    MAX_TENSORS,
    RESAVE_ADVICE,
    FileKind,
    damaged,
    kind_of,
    opened_archive,
)
from senseapp.networks.profile import is_finite

_ARCHITECTURE_KEYS = ("arch", "architecture", "model_name", "model_arch", "model")
_SETTINGS_KEYS = ("args", "hyper_parameters", "config", "cfg", "hparams")
_MALFORMED = (*ZIP_DAMAGE, OverflowError, MemoryError, RecursionError, struct.error)
_MODULE_KEYS = ("_parameters", "_buffers", "_modules")
_CONTAINERS = (dict, list, tuple, Record, Stored)
_DEEPEST = 24  # networks are some ten modules deep


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """The tensors of a file.

    Attributes:
        file_name: name of the file, without its folder.
        tensors: by name, prefixed by the dict keys and attributes that lead to the tensor, joined by dots
            (``state_dict.module.conv1.weight``). Memory-mapped where the file's form allows, and in the file's number
            format (converted to float32 when copied into a network).
        arch_hint: the architecture's name as the training program wrote it; empty without one.
        other_forms: names of tensors that are not plain and dense, with their form.
        notes: sentences for the user.
        keeps_order: whether the tensors are in the order of the network; writers of safetensors sort them by name.
        config: what a ``config.json`` beside the weights says of the network.
    """

    file_name: str
    tensors: Mapping[str, Tensor]
    arch_hint: str = ""
    other_forms: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    keeps_order: bool = True
    config: ModelConfig | None = None


def read_checkpoint(path: str | Path) -> Checkpoint:
    """Read a ``.pth .pt .bin .ckpt .tar`` or ``.safetensors`` file, or a folder or zip of one; code is never run.

    Weights that are stored in parts (masks of pruning, norms and directions) are composed.

    Raises InvalidCheckpoint if the file is missing, damaged, of another form, or without weights.
    """
    path = Path(path)
    if not is_model_folder(path):
        return _read_file(path)
    with opened_model_folder(path) as (weights, config):
        return replace(_read_file(weights), file_name=path.name, config=config)


def _read_file(path: Path) -> Checkpoint:
    kind = kind_of(path)
    if kind == "safetensors":
        found, root, classes = _read_safetensors(path), None, list[str]()
    else:
        found, root, classes = _read_pickled(path, kind)
    tensors = {name: value for name, value in found.items() if isinstance(value, Tensor)}
    other_forms = {name: value for name, value in found.items() if isinstance(value, str)}
    if not tensors:
        raise InvalidCheckpoint(_without_weights(path.name, root, classes, other_forms))
    whole, notes = plain_weights(tensors)
    return Checkpoint(
        file_name=path.name,
        tensors=whole,
        arch_hint=_architecture_hint(root),
        other_forms=other_forms,
        notes=(*notes, f"Left out, unread: objects of {first_names(classes)}. No code from the file was run.")
        if classes
        else notes,
        keeps_order=kind != "safetensors",
    )


def _read_safetensors(path: Path) -> dict[str, Tensor | str]:
    try:
        with safe_open(str(path), framework="pt", device="cpu") as file:
            in_file = getattr(file, "offset_keys", file.keys)()  # early releases list names in alphabetical order only
            names = [name for name in in_file if _is_name(name)]
            tensors = {name: file.get_tensor(name) for name in names}
    except (SafetensorError, ValueError, RuntimeError, OSError, KeyError, AttributeError, TypeError) as error:
        raise damaged(path, error) from error
    return {name: "of complex numbers" if tensor.is_complex() else tensor for name, tensor in tensors.items()}


def _read_pickled(path: Path, kind: FileKind) -> tuple[dict[str, Tensor | str], object, list[str]]:
    """Return the tensors by name (or the form of others), their container, and the classes left out."""
    file = TensorFile(path)
    try:
        root = _read_zip(path, file) if kind == "zip" else file.read_legacy()
        stored = _tensors_in(root)
        # tied weights share bytes; an expanded tensor has far more elements than bytes
        if sum(value.claimed_bytes for _, value in stored) > 4 * path.stat().st_size:
            raise ValueError("its tensors claim far more bytes than the file has")
        found = {name: value.read() for name, value in stored}
    except _MALFORMED as error:
        raise damaged(path, error) from error
    return found, root, sorted(file.reader.recorded)


def _read_zip(path: Path, file: TensorFile) -> object:
    with opened_archive(path) as (archive, pickle):
        folder = pickle.filename.removesuffix("data.pkl")
        for entry in archive.members:
            name = entry.filename.removeprefix(folder)
            if name == "byteorder" and archive.read(entry) == b"big":
                raise ValueError("a machine of another byte order wrote it")
            if name.startswith("data/"):
                file.spans[name.removeprefix("data/")] = archive.start_of(entry), entry.file_size
        return file.reader.read(io.BytesIO(archive.read(pickle)))


def _tensors_in(root: object) -> list[tuple[str, Stored]]:
    """Return the tensors of containers by the first path to each, in the order of the file; ValueError for too many."""
    found: list[tuple[str, Stored]] = []
    seen: set[int] = set()

    def look_through(value: object, name: str, depth: int) -> None:
        if isinstance(value, Stored):
            found.extend([(name, value)] if name else [])
            if len(found) > MAX_TENSORS:
                raise ValueError(f"it names more than {MAX_TENSORS:,} tensors")
        elif id(value) not in seen and depth < _DEEPEST:
            seen.add(id(value))
            for key, item in _items(value):
                inner = f"{name}.{key}" if name and key != "" else f"{name}{key}"
                if isinstance(item, _CONTAINERS) and _is_name(inner):
                    look_through(item, inner, depth + 1)

    look_through(root, "", 0)
    return found


def _items(value: object) -> Iterable[tuple[Any, object]]:
    """Return the entries of a value by key; a module's weights and submodules under their own names."""
    if isinstance(value, dict):
        return ((key, item) for key, item in value.items() if isinstance(key, str | int))
    if isinstance(value, list | tuple):
        return enumerate(value)
    if not isinstance(value, Record):
        return ()
    state = value.state if isinstance(value.state, dict) else {}
    if all(isinstance(state.get(key), dict) for key in _MODULE_KEYS):
        passing = state.get("_non_persistent_buffers_set")
        without = set(filter(_is_name, passing)) if isinstance(passing, list | set) else set()
        own = (item for key in _MODULE_KEYS for item in _items(state[key]))
        return (item for item in own if item[0] not in without)
    inside = [("", argument) for argument in value.arguments if isinstance(argument, dict)]
    parts = [("", part) for part in value.state if isinstance(part, dict)] if isinstance(value.state, tuple) else []
    return (*inside, *value.items.items(), *enumerate(value.values), *state.items(), *parts)


def _is_name(key: object) -> bool:
    """Return whether a key can name a layer, as run files take it; lone surrogates cannot be encoded."""
    if not isinstance(key, str) or len(key) > 500:
        return False
    return not any("\ud800" <= character <= "\udfff" for character in key)


def _fields(value: object) -> Mapping[Any, object]:
    if isinstance(value, Record):
        return value.state if isinstance(value.state, dict) else value.items
    return value if isinstance(value, dict) else {}


def _architecture_hint(root: object) -> str:
    fields = _fields(root)
    for source in (fields, *(_fields(fields.get(key)) for key in _SETTINGS_KEYS)):
        for key in _ARCHITECTURE_KEYS:
            if isinstance(found := source.get(key), str) and _is_name(found):
                return found
    return ""


def _without_weights(file_name: str, root: object, classes: Sequence[str], other_forms: Mapping[str, str]) -> str:
    if other_forms:
        name, form = next(iter(other_forms.items()))
        return f"{name} in {file_name} is {form}. Save the weights of the float32 model, plain and dense."
    keys = [str(key)[:40] for key, _ in zip(_fields(root), range(6), strict=False) if _is_name(str(key))]
    kind = root.name if isinstance(root, Record) else "dict" if isinstance(root, dict) else type(root).__name__
    held = ", ".join(keys) or f"a {kind}"
    records = f"; in it are objects of {first_names(classes)}, which were not opened" if classes else ""
    return f"{file_name} holds no weights by layer name; it holds {held}{records}. {RESAVE_ADVICE}"


def number_notes(tensors: Mapping[str, Tensor]) -> Iterator[str]:
    """Yield notes on the number formats and non-finite values of a network's weights."""
    formats = {str(t.dtype).removeprefix("torch.") for t in tensors.values() if t.is_floating_point()} - {"float32"}
    if formats:
        yield f"Weights kept as {', '.join(sorted(formats))} are read as float32."
    broken = [name for name, tensor in tensors.items() if not is_finite(tensor)]
    if broken:
        yield f"These weights hold NaN or infinite numbers, so figures may mean nothing: {first_names(broken)}."
