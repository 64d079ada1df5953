"""Where senseapp keeps its runs."""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs


def home() -> Path:
    """Return ``SENSEAPP_HOME`` if it is set, else the platform's user data folder for senseapp."""
    configured = os.environ.get("SENSEAPP_HOME", "").strip()
    return (
        Path(configured).expanduser() if configured else Path(platformdirs.user_data_dir("senseapp", appauthor=False))
    )
