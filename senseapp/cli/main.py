"""From arguments to an exit status: 0 success, 2 bad input (one line), 130 interrupted."""

from __future__ import annotations

import logging
import os
import sys
import warnings
from collections.abc import Sequence

from senseapp.cli.parser import build_parser
from senseapp.errors import SenseError

BAD_INPUT = 2
INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return the exit status; ``argv`` None takes the process's arguments.

    What was asked for goes to standard output; progress and complaints go to standard error.
    """
    logging.getLogger().addHandler(logging.NullHandler())  # libraries' log lines would blur the one line of an error
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # as above; what people need to know is in the result's notes
        try:
            arguments = build_parser().parse_args(argv)
            arguments.run(arguments)
        except SenseError as error:
            print(f"senseapp: {' '.join(str(error).split())}", file=sys.stderr)
            return BAD_INPUT
        except KeyboardInterrupt:
            print(
                "senseapp: Interrupted. What was measured is kept; the same command goes on from there.",
                file=sys.stderr,
            )
            return INTERRUPTED
        except BrokenPipeError:  # the reader, ``head`` perhaps, has seen enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0
