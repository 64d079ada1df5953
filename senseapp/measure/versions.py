"""Versions of what computes a run's figures: Python, libraries, and senseapp's own code."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Mapping
from functools import cache
from importlib.metadata import version
from pathlib import Path

_PACKAGES = ("torch", "torchvision", "timm", "torch-pruning", "numpy")
_SOURCES = Path(__file__).resolve().parents[1]
_ENGINE = (
    *("compat", "compressions", "core", "data", "descriptions", "measure", "metrics", "networks", "records", "tasks"),
)


@cache
def engine_digest() -> str:
    """Return a hash of the code that measures: a version number says too little of a copy that is worked on."""
    digest = hashlib.sha256()
    for path in sorted(path for package in _ENGINE for path in (_SOURCES / package).rglob("*.py")):
        digest.update(path.relative_to(_SOURCES).as_posix().encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


def versions_here() -> dict[str, str]:
    """Return the versions that every machine of a run must share, so that its figures belong together."""
    own = {"python": platform.python_version(), "senseapp": engine_digest()[:12]}
    return own | {name: version(name) for name in _PACKAGES}


def differences(asked: Mapping[str, str], here: Mapping[str, str]) -> str:
    """Name what differs, as ``torch 2.13.0 instead of 2.14.1``; empty if nothing does."""
    return ", ".join(
        f"{name} {here.get(name, 'none')} instead of {wanted}"
        for name, wanted in asked.items()
        if here.get(name) != wanted
    )
