"""Serve the app: ``python -m senseapp.ui.serve [streamlit options]``.

Streamlit takes a folder called ``pages`` for pages of its own kind until ``st.navigation`` has run once. Somebody who
opens a link to a run on a fresh server would then see that page without ``app.py`` around it, so the old kind is
switched off before the first visitor comes.
"""

from __future__ import annotations

import sys
from pathlib import Path

from streamlit.runtime.pages_manager import PagesManager
from streamlit.web.cli import main

__all__ = ["serve"]

_APP = Path(__file__).resolve().parents[2] / "app.py"


def serve(options: list[str]) -> None:
    """Run the server until it is stopped; ``options`` are those of ``streamlit run``."""
    PagesManager.uses_pages_directory = False
    sys.argv = ["streamlit", "run", str(_APP), *options]
    main()


if __name__ == "__main__":
    serve(sys.argv[1:])
