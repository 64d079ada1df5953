"""``serve``: the app in the browser."""

import argparse
from contextlib import suppress

from senseapp.core.errors import InvalidSpec
from senseapp.server.settings import LAST_PORT

EPILOG = """\
Runs are stored in SENSEAPP_HOME, or in your user data folder. All other settings are environment variables, too;
docs/deploy.md lists them.

examples:
  python -m senseapp serve
  python -m senseapp serve --port 8600 --host 0.0.0.0
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``serve``."""
    parser.add_argument("--port", type=int, metavar="N", help="port to listen on (default: 8501)")
    parser.add_argument(
        "--host",
        metavar="ADDRESS",
        help="address to listen on; 0.0.0.0 for all of this machine (default: 127.0.0.1, for this machine alone)",
    )


def run(arguments: argparse.Namespace) -> None:
    """Serve until the process is told to end; raises InvalidSpec where there is no such port."""
    if arguments.port is not None and not 1 <= arguments.port <= LAST_PORT:
        raise InvalidSpec(f"A port is a number from 1 to {LAST_PORT}; got {arguments.port}.")
    from senseapp.app.server.serve import serve  # Streamlit, which no other command needs

    given = {"server.port": arguments.port, "server.address": arguments.host}
    with suppress(KeyboardInterrupt):  # how people end it
        serve([f"--{name}={value}" for name, value in given.items() if value is not None])
