"""Location of the app's own files: ``app.py``, ``pages``, ``assets`` and ``.streamlit``."""

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parents[1]
_INSTALLED = _PACKAGE / "site"

SITE = _INSTALLED if _INSTALLED.is_dir() else _PACKAGE.parent
"""The root of the clone; in an installed package, its own folder, filled by the build (``setup.py``)."""
