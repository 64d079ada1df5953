"""Many models, one after the other: which, into which folders, and the leaderboard at the end."""

from __future__ import annotations

import argparse
import csv
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from senseapp.core.errors import ClusterFailed, InvalidInput, InvalidSpec, SenseError
from senseapp.core.files import read_at_most, replace_file
from senseapp.core.tables import TableError, decoded_text
from senseapp.records.measurement import RunResult
from senseapp.server.leaderboard import LeaderboardRow, leaderboard_csv, leaderboard_row, ranked

TABLE = "leaderboard.csv"


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchItem:
    """One model of several: its name, its checkpoint if the list names one, and the folder of its results."""

    model: str
    checkpoint: str | None
    folder: Path


def batch_of(arguments: argparse.Namespace) -> tuple[BatchItem, ...]:
    """Return the models that are asked for; one alone keeps the folder for itself."""
    asked = [(model, arguments.checkpoint) for model in arguments.model or ()]
    asked += _listed(arguments.models) if arguments.models else []
    if not asked:
        raise InvalidSpec("Say which model: --model NAME, once or more often, or --models FILE with one in each line.")
    if len(asked) == 1 and not arguments.models:
        return (BatchItem(model=asked[0][0], checkpoint=asked[0][1], folder=arguments.out),)
    if arguments.checkpoint:
        raise InvalidSpec("--checkpoint belongs to one model. For several, write MODEL,CHECKPOINT lines into --models.")
    names = [_folder_name(model, checkpoint) for model, checkpoint in asked]
    twice = next((name for name in names if names.count(name) > 1), "")
    if twice:
        raise InvalidSpec(f"Each model may be given once, and {twice} comes more often. Remove one of them.")
    return tuple(
        BatchItem(model=model, checkpoint=checkpoint, folder=arguments.out / name)
        for (model, checkpoint), name in zip(asked, names, strict=True)
    )


def run_batch(items: Sequence[BatchItem], analyze: Callable[[BatchItem], RunResult], out: Path) -> list[LeaderboardRow]:
    """Analyze each model, write the leaderboard after each, print it, and return it."""
    rows, refused = [], []
    for number, item in enumerate(items, start=1):
        print(f"{number} of {len(items)}: {item.folder.name}", file=sys.stderr)
        try:
            result = analyze(item)
        except ClusterFailed:
            raise
        except SenseError as error:
            refused.append(item.folder.name)
            print(f"senseapp: {item.folder.name}: {' '.join(str(error).split())}", file=sys.stderr)
            continue
        rows.append(leaderboard_row(result, run=item.folder.name))
        replace_file(out / TABLE, leaderboard_csv(ranked(rows)))
    print("\n".join(_lines(ranked(rows))))
    if refused:
        raise InvalidInput(
            f"{len(refused)} of {len(items)} models could not be measured ({', '.join(refused)}); the reasons are "
            "above. The same command measures what is missing."
        )
    return rows


def _listed(file: Path) -> list[tuple[str, str | None]]:
    try:
        text, _ = decoded_text(read_at_most(file))
    except (OSError, TableError) as error:
        raise InvalidSpec(
            f"The list of models {file} cannot be read. Give a text file with one model in each line."
        ) from error
    lines = (line.split("#")[0].strip() for line in text.splitlines())
    return [_entry(file, row) for row in csv.reader(line for line in lines if line)]


def _entry(file: Path, row: list[str]) -> tuple[str, str | None]:
    cells = [cell.strip() for cell in row]
    if len(cells) > 2 or not cells[0]:
        raise InvalidSpec(f"A line of {file} is MODEL or MODEL,CHECKPOINT, got {','.join(row)!r}.")
    return cells[0], cells[1] if len(cells) == 2 and cells[1] else None


def _folder_name(model: str, checkpoint: str | None) -> str:
    text = f"{model}-{Path(checkpoint).stem}" if checkpoint else model
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-.") or "model"


def _lines(rows: Sequence[LeaderboardRow]) -> Iterator[str]:
    """Yield the leaderboard as text."""
    width = max((len(row.run) for row in rows), default=0)
    for row in rows:
        small = "unknown" if row.bytes_removable is None else f"{100 * row.bytes_removable:.0f} %"
        yield f"{row.run:<{width}}  bytes removable for 1 point (predicted): {small:>7}  {row.headline}"
