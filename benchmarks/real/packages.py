"""Files that Python packages bring, without importing these."""

from __future__ import annotations

import importlib.util
from pathlib import Path


def file_of(name: str) -> Path:
    """Return the file ``package/path``; raises FileNotFoundError, which names the package, where it is missing."""
    package, _, rest = name.partition("/")
    found = importlib.util.find_spec(package)
    file = None if found is None or found.origin is None else Path(found.origin).parent / rest
    if file is None or not file.is_file():
        raise FileNotFoundError(f"The package {package}, which brings {file.name if file else name}, is not installed.")
    return file
