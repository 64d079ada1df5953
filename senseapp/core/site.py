"""Where the app's own files lie: ``app.py``, ``pages``, ``assets`` and ``.streamlit``."""

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parents[1]
_INSTALLED = _PACKAGE / "site"

SITE = _INSTALLED if _INSTALLED.is_dir() else _PACKAGE.parent
"""The top of the clone; in an installed package, a folder of its own that the build has filled (``setup.py``)."""
