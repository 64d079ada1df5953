"""What is known about a model before a run, loaded once per model.

Whether two runs measured one network: the same architecture with the same weights, wherever the files lie.
"""

from __future__ import annotations

import functools
import hashlib
import threading
from collections import OrderedDict
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

from senseapp.core.errors import InvalidSchedule
from senseapp.records.profile import ModelProfile
from senseapp.records.spec import ModelSpec
from senseapp.runs.session import load_engine
from senseapp.tasks import task_named

_KEPT = 64
_Key: TypeAlias = tuple[ModelSpec, float, int]


def load_card(model: ModelSpec) -> tuple[ModelProfile, tuple[str, ...]]:
    """Load the network, describe it from one forward pass, and drop it again; takes up to seconds.

    Returns:
        The profile, and the names of the model's outputs (empty where unknown).
    """
    load_engine()
    import torch  # here and below: torch loads on first use, not when the app starts

    from senseapp.layers.profile import profile_model
    from senseapp.models.load import load_model

    loaded = load_model(model)
    sample = torch.zeros(1, *loaded.preprocessing.input_shape)
    profile = profile_model(
        loaded.module,
        sample,
        task=task_named(model.task),
        title=loaded.title,
        pretrained=loaded.pretrained,
        notes=loaded.notes,
    )
    return profile, loaded.class_names


class ModelCards:
    """Profiles by model; a checkpoint that changed on disk is read again."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loading = threading.Lock()
        self._profiles: OrderedDict[_Key, ModelProfile] = OrderedDict()
        self._class_names: OrderedDict[_Key, tuple[str, ...]] = OrderedDict()

    def card(self, model: ModelSpec) -> ModelProfile:
        """Return the profile of ``model``; the first time this loads it and blocks."""
        if (known := self._known(model)) is not None:
            return known
        with self._loading:  # one at a time, and never the same network twice; known ones are answered meanwhile
            if (known := self._known(model)) is not None:
                return known
            return self._load(model)

    def class_names(self, model: ModelSpec) -> tuple[str, ...]:
        """Return the names of the model's outputs, empty where unknown; this may load it, as :meth:`card` does."""
        with self._loading:
            if _key(model) not in self._class_names:
                self._load(model)
            return self._class_names[_key(model)]

    def keep(self, model: ModelSpec, profile: ModelProfile) -> None:
        """Remember a profile, for example one that a run made anyway."""
        with self._lock:
            self._profiles[_key(model)] = profile
            while len(self._profiles) > _KEPT:
                self._profiles.popitem(last=False)

    def _load(self, model: ModelSpec) -> ModelProfile:
        profile, class_names = load_card(model)
        self.keep(model, profile)
        self._class_names[_key(model)] = class_names
        while len(self._class_names) > _KEPT:
            self._class_names.popitem(last=False)
        return profile

    def _known(self, model: ModelSpec) -> ModelProfile | None:
        key = _key(model)
        with self._lock:
            if key in self._profiles:
                self._profiles.move_to_end(key)
            return self._profiles.get(key)


def _key(model: ModelSpec) -> _Key:
    if not model.checkpoint or not Path(model.checkpoint).is_file():
        return model, 0.0, 0
    status = Path(model.checkpoint).stat()
    return model, status.st_mtime, status.st_size


def same_model(first: ModelSpec, second: ModelSpec) -> bool:
    """Return whether both are of one network: equal settings, and checkpoints of equal content.

    A checkpoint that is not on this machine, or no longer, is the same as one of an equal path only.
    """
    if first == second:
        return True
    if replace(first, checkpoint="") != replace(second, checkpoint="") or not (first.checkpoint and second.checkpoint):
        return False
    contents = [_content(model.checkpoint) for model in (first, second)]
    return contents[0] is not None and contents[0] == contents[1]


def require_same_model(first: ModelSpec, second: ModelSpec) -> None:
    """Check that two runs are of one network; of imported figures only the layers are known, which schedules compare.

    Raises:
        InvalidSchedule: their settings or the contents of their checkpoints differ.
    """
    if "imported" not in (first.library, second.library) and not same_model(first, second):
        names = " and ".join(Path(model.checkpoint).name or model.title for model in (first, second))
        raise InvalidSchedule(
            f"The two runs are of different models, or their checkpoints are no longer there to be compared ({names}). "
            "Choose two runs of one model."
        )


def _content(path: str) -> str | None:
    """Return a hash of the file at ``path``; None where there is none to be read."""
    file = Path(path)
    if not file.is_absolute():  # of a run from another server, of which only the file's name is known
        return None
    try:
        found = file.stat()
        return _hash(file, found.st_size, found.st_mtime_ns)
    except OSError:
        return None


@functools.lru_cache(maxsize=256)
def _hash(file: Path, _size: int, _changed: int) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
