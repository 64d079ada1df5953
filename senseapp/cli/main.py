"""From arguments to an exit status: 0 success, 1 a check that fails, 2 bad input (one line), 130 interrupted."""

import argparse
import logging
import os
import sys
import warnings
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, nullcontext, redirect_stderr, redirect_stdout
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn, TextIO, cast

from senseapp import __version__
from senseapp.core.errors import InvalidSpec, SenseError

COMMANDS = {
    "serve": "Serve the app to browsers until Ctrl-C.",
    "models": "List the architectures of timm and torchvision.",
    "read": "Show how outputs of a network, images and labels are interpreted, and why.",
    "analyze": "Measure the loss from compressing each layer.",
    "import": "Read a sensitivity table that Distiller wrote.",
    "recommend": "Find the strongest compression with a tolerable loss on held-out images, and write its files.",
    "schedule": "Choose one level per layer for a budget, and write the file your tool reads.",
    "apply": "Compress the weights by a schedule, measure the loss, and write them.",
    "deploy": "Write the network as a file for a runtime, in int8 or float, and measure it beside the original.",
    "check": "Compare a compressed file with the original: loss and its bound, time, likely causes.",
    "blame": "Find the nodes of a quantized ONNX file that cause its loss.",
    "compare": "Compare how runs rank the layers, or the estimates of one run with its measurements.",
    "histogram": "Draw histograms of weights or activations with the quantization grid, and their gradients.",
    "report": "Write a run as one HTML file: charts, tables, settings, measured schedules.",
}
"""What each subcommand does."""
_CONSOLE_COMMAND = "senseapp"
_MODULE = "python -m senseapp"
BAD_INPUT = 2  # as argparse exits
_LONGEST = 2000  # characters of a message
INTERRUPTED = 130  # 128 + SIGINT, as shells report it


def module_of(command: str) -> ModuleType:
    """Return the module of a subcommand: ``EPILOG``, ``add_arguments``, and ``run``, which may return a status."""
    return import_module(f"senseapp.cli.{'import_csv' if command == 'import' else command}")


class _OneLineParser(argparse.ArgumentParser):
    """Raises instead of printing usage and leaving, so that every kind of bad input is told the same way."""

    def error(self, message: str) -> NoReturn:
        raise InvalidSpec(f"{message[:1].upper()}{message[1:]}. {self.prog} --help shows what is possible.")


def build_parser(loaded: Collection[str] = tuple(COMMANDS)) -> argparse.ArgumentParser:
    """Return the parser, which knows the options of the ``loaded`` commands; its namespace holds ``run``."""
    program = _CONSOLE_COMMAND if Path(sys.argv[0]).stem == _CONSOLE_COMMAND else _MODULE
    parser = _OneLineParser(
        prog=program,
        description="Measure which layers of a vision network are fragile, compress the others, and check the files.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"senseapp {__version__}")
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND", dest="command", required=True)
    for name, summary in COMMANDS.items():
        subparser = subparsers.add_parser(
            name,
            help=summary,
            description=summary,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        if name in loaded:
            module = module_of(name)
            subparser.epilog = module.EPILOG.replace(_MODULE, program)
            module.add_arguments(subparser)
            subparser.set_defaults(run=module.run)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return the exit status; ``argv`` None takes the process's arguments.

    What was asked for goes to standard output; progress and complaints go to standard error.
    """
    words = sys.argv[1:] if argv is None else argv
    logging.getLogger().addHandler(logging.NullHandler())  # libraries' log lines would blur the one line of an error
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # as above; what people need to know is in the result's notes
        try:
            arguments = build_parser(words[:1]).parse_args(words)
            with nullcontext() if arguments.command == "serve" else printable_streams():
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


class _PrintableStream:
    """A stream that control characters do not reach."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write ``text``, with a replacement for each character that a terminal would act on."""
        return self._stream.write(text if text.isprintable() else "".join(map(_shown, text)))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def printable_streams() -> Iterator[None]:
    """Keep control characters from the terminal in the body: names in what is printed may be anybody's."""
    out, err = (cast(TextIO, _PrintableStream(stream)) for stream in (sys.stdout, sys.stderr))
    with redirect_stdout(out), redirect_stderr(err):
        yield


def _shown(letter: str) -> str:
    return letter if letter.isprintable() or letter in "\n\r\t" else "\ufffd"  # bars of progress use \r
