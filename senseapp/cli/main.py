"""From arguments to an exit status: 0 success, 1 a check that fails, 2 bad input (one line), 130 interrupted.

The argument parser: complains in one line, and knows every subcommand.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import warnings
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import NoReturn

from senseapp.cli import (
    analyze,
    apply,
    blame,
    check,
    compare,
    deploy,
    histogram,
    import_csv,
    models,
    read,
    recommend,
    report,
    schedule,
    serve,
)
from senseapp.cli.output import printable_streams
from senseapp.core.errors import InvalidSpec, SenseError

COMMANDS = (
    *(serve, models, read, analyze, import_csv, recommend, schedule, apply, deploy, check, blame),
    *(compare, histogram, report),
)
"""One module per subcommand; each has ``NAME``, ``SUMMARY``, ``add_arguments`` and ``run``, which may return an exit
status."""

_CONSOLE_COMMAND = "senseapp"
_MODULE = "python -m senseapp"


class _OneLineParser(argparse.ArgumentParser):
    """Raises instead of printing usage and leaving, so that every kind of bad input is told the same way."""

    def error(self, message: str) -> NoReturn:
        raise InvalidSpec(f"{message[:1].upper()}{message[1:]}. {self.prog} --help shows what is possible.")


def build_parser() -> argparse.ArgumentParser:
    """Return the parser; its namespace holds the subcommand's ``run``."""
    program = _CONSOLE_COMMAND if Path(sys.argv[0]).stem == _CONSOLE_COMMAND else _MODULE
    parser = _OneLineParser(
        prog=program,
        description="Find out which layers of a vision model are fragile, and turn that into per-layer targets.",
        allow_abbrev=False,
    )
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in COMMANDS:
        subparser = subparsers.add_parser(
            command.NAME,
            help=command.SUMMARY,
            description=command.SUMMARY,
            epilog=command.EPILOG.replace(_MODULE, program),
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        command.add_arguments(subparser)
        subparser.set_defaults(run=command.run)
    return parser


BAD_INPUT = 2  # as argparse exits
_LONGEST = 2000  # characters of a message
INTERRUPTED = 130  # 128 + SIGINT, as shells report it


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return the exit status; ``argv`` None takes the process's arguments.

    What was asked for goes to standard output; progress and complaints go to standard error.
    """
    logging.getLogger().addHandler(logging.NullHandler())  # libraries' log lines would blur the one line of an error
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # as above; what people need to know is in the result's notes
        try:
            arguments = build_parser().parse_args(argv)
            with nullcontext() if arguments.run is serve.run else printable_streams():
                status: int | None = arguments.run(arguments)
        except SenseError as error:
            return _refused(str(error))
        except KeyboardInterrupt:
            print(
                "senseapp: Interrupted. What was measured is kept; the same command goes on from there.",
                file=sys.stderr,
            )
            return INTERRUPTED
        except BrokenPipeError:  # the reader, ``head`` perhaps, has seen enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        except OSError as error:  # a path that the system refuses, such as one that is too long
            return _refused(f"A file cannot be used: {error.strerror or error}: {error.filename or 'it has no name'}")
        else:
            return status or 0
    return 0


def _refused(message: str) -> int:
    line = " ".join(message.split())
    print(f"senseapp: {line if len(line) <= _LONGEST else f'{line[:_LONGEST]} …'}", file=sys.stderr)
    return BAD_INPUT
