"""Command lines that nobody would type, and some that people do: each ends with 0 or 2, in one line, no traceback.

Run as ``python -m soak.cli_fuzz [--lines 1000]``; exits with 0 if every line did.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import random
import sys
import tempfile
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from senseapp.cli.main import COMMANDS, build_parser, main
from senseapp.server.outputs import write_outputs
from senseapp.store.run_folder import RunFolder
from tests.pages.records import result

ALLOWED = (0, 2)
_LONG = "x" * 5000
_VALUES = (
    *("", " ", "-", "--", "-1", "0", "1", "1e999", "nan", "50", "10,20", "101", "4", "٣", "😀", "\udc80", "%s", "=1+1"),
    *(_LONG, "../" * 1000, "/dev/null", "/dev/zero", "/dev/full", "/proc/self/mem", "/sys", ".", "/", "~", "a\nb"),
    *("demo", "timm/none", "torchvision/none", "sparsity", "quantization", "json", "csv", "zip", "params=0.5", "kl"),
)


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How one command line ended; ``wrong`` is empty where it ended as it should."""

    line: tuple[str, ...]
    wrong: str


def files_of(folder: Path) -> tuple[str, ...]:
    """Make a finished run, and files that are damaged in one way each; return their paths."""
    run = folder / "run"
    RunFolder(run).make()
    RunFolder(run).save_result(result())
    write_outputs(result(), run)
    damaged = {
        "empty.json": b"",
        "list.json": b"[1, 2]",
        "deep.json": b"[" * 5000,
        "bom.csv": b"\xef\xbb\xbflayer",
        "latin.csv": "größe".encode("latin-1"),
        "quote.csv": b'layer,"members',
        "zeros.safetensors": bytes(100),
        "text.pth": b"no weights",
    }
    for name, content in damaged.items():
        (folder / name).write_bytes(content)
    (folder / "damaged").mkdir()
    (folder / "damaged" / "result.json").write_bytes((run / "result.json").read_bytes()[:1000])
    return (str(run), str(folder / "damaged"), *(str(folder / name) for name in damaged))


def options_of(command: str) -> tuple[str, ...]:
    """Return the options of a subcommand."""
    commands = next(action for action in build_parser()._actions if isinstance(action.choices, dict))
    assert isinstance(commands.choices, dict)
    return tuple(text for action in commands.choices[command]._actions for text in action.option_strings)


def command_lines(count: int, files: tuple[str, ...], chance: random.Random) -> Iterator[tuple[str, ...]]:
    """Yield random command lines: mostly real options, with values of every kind."""
    options = {command: options_of(command) for command in COMMANDS if command != "serve"}  # it would
    for _ in range(count):
        command = chance.choice([*options, "", "nothing"])
        words = [command] if command else []
        for _ in range(chance.randint(0, 7)):
            if chance.random() < 0.7:
                words.append(chance.choice([*options.get(command, ()), "--nothing", "-h"]))
            words.append(chance.choice(files if chance.random() < 0.4 else _VALUES))
        yield tuple(words)


def tried(line: tuple[str, ...]) -> Ended:
    """Carry one out in this process."""
    out, error = io.StringIO(), io.StringIO()
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(error):
            status: object = main(line)
    except SystemExit as left:
        status = left.code
    except BaseException:
        return Ended(line=line, wrong=traceback.format_exc(limit=-3))
    said = error.getvalue()
    if status not in ALLOWED and (line[:1], status) != (("check",), 1):  # a candidate that fails
        return Ended(line=line, wrong=f"it ended with {status}: {said}")
    if status == 2 and (said.count("\n") != 1 or not said.startswith("senseapp: ") or len(said) > 3000):
        return Ended(line=line, wrong=f"it said {said[:500]!r}")
    return Ended(line=line, wrong="")


def fuzz(count: int, *, seed: int = 0) -> list[Ended]:
    """Try that many, and return those that did not end as they should."""
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        files = files_of(Path(folder))
        lines = command_lines(count, files, random.Random(seed))
        return [ended for line in lines if (ended := tried(line)).wrong]


def soak(arguments: list[str]) -> int:
    """Try as many as asked, and say how they ended."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lines", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(arguments)
    wrong = fuzz(given.lines, seed=given.seed)
    for ended in wrong:
        sys.stdout.write(f"{[word[:60] for word in ended.line]!a}\n{ended.wrong}\n")
    sys.stdout.write(f"{given.lines - len(wrong)} of {given.lines} command lines ended with 0 or 2, in one line\n")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(soak(sys.argv[1:]))
