"""The argument parser: complains in one line, and knows every subcommand."""

from __future__ import annotations

import argparse
from typing import NoReturn

from senseapp.cli import analyze, apply, compare, import_csv, models, report, schedule
from senseapp.errors import InvalidSpec

COMMANDS = (models, analyze, import_csv, schedule, apply, compare, report)
"""One module per subcommand; each has ``NAME``, ``SUMMARY``, ``add_arguments`` and ``run``."""


class _OneLineParser(argparse.ArgumentParser):
    """Raises instead of printing usage and leaving, so that every kind of bad input is told the same way."""

    def error(self, message: str) -> NoReturn:
        raise InvalidSpec(f"{message[:1].upper()}{message[1:]}. {self.prog} --help shows what is possible.")


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of ``python -m senseapp``; its namespace holds the subcommand's ``run``."""
    parser = _OneLineParser(
        prog="python -m senseapp",
        description="Find out which layers of a vision model are fragile, and turn that into per-layer targets.",
        allow_abbrev=False,
    )
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in COMMANDS:
        subparser = subparsers.add_parser(
            command.NAME,
            help=command.SUMMARY,
            description=command.SUMMARY,
            epilog=command.EPILOG,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        command.add_arguments(subparser)
        subparser.set_defaults(run=command.run)
    return parser
