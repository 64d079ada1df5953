"""What must be the same on every machine of a run, so that its figures belong together."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

_PACKAGES = ("torch", "torchvision", "timm", "torch-pruning", "numpy")
_ENGINE = (
    *("data", "distributed", "evaluate", "layers", "metrics", "models"),
    *("results", "sensitivity", "spec", "transforms"),
)
_DIGITS = 12


@cache
def versions_here() -> dict[str, str]:
    """Return the versions of Python, of what computes, and of senseapp's own code."""
    found = {"python": platform.python_version(), "senseapp": _digest(Path(__file__).parents[1])}
    return found | {name: _version(name) for name in _PACKAGES}


def differences(asked: Mapping[str, str], here: Mapping[str, str]) -> str:
    """Name what differs, as ``torch 2.13.0 instead of 2.14.1``; empty if nothing does."""
    return ", ".join(
        f"{name} {here.get(name, 'none')} instead of {wanted}"
        for name, wanted in asked.items()
        if here.get(name) != wanted
    )


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "none"


def _digest(package: Path) -> str:
    """Return a fingerprint of the code that decides figures; it changes more often than its version."""
    code = hashlib.sha256()
    for path in sorted(path for part in _ENGINE for path in (package / part).rglob("*.py")):
        code.update(path.relative_to(package).as_posix().encode())
        code.update(path.read_bytes())
    return code.hexdigest()[:_DIGITS]
