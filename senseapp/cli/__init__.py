"""The command line, ``python -m senseapp``: one module per subcommand. No torch at import."""

from senseapp.cli.main import main

__all__ = ["main"]
