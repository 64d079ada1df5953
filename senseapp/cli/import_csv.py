"""``import``: make a run's folder from another tool's sensitivity table."""

import argparse
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import get_args

from senseapp.cli.run_arguments import parsed, print_outputs
from senseapp.compressions.sparsity import SparsityGranularity
from senseapp.core.errors import RunMismatch
from senseapp.records.headline import headline
from senseapp.server.model_cards import load_card
from senseapp.server.outputs import write_outputs
from senseapp.store.distiller import read_distiller_csv
from senseapp.store.run_folder import RunFolder

EPILOG = """\
FILE has the columns parameter,sparsity,top1,top5,loss: sparsity as a fraction, top1 and top5 in percent, and for each
parameter a row at sparsity 0. DIR receives result.json, sensitivity.csv and targets.json, as from analyze, and schedule
can read it. With --model the sizes of the layers are known, and parameters that the model does not have are ignored.
Without it all layers count as equally large.

examples:
  python -m senseapp import resnet18.csv --out runs/resnet18
  python -m senseapp import resnet18.csv --model torchvision/resnet18 --granularity filter --out runs/resnet18
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``import``."""
    parser.add_argument("file", type=Path, metavar="FILE", help="the table")
    parser.add_argument("--model", default="", help="timm/NAME or torchvision/NAME, for the sizes of its layers")
    parser.add_argument(
        "--granularity",
        default="weight",
        choices=get_args(SparsityGranularity),
        metavar="G",
        help="what Distiller set to zero: single weights or whole filters (default: weight)",
    )
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder for the results")


def run(arguments: argparse.Namespace) -> None:
    """Read the table, write the folder, and print the headline and the notes."""
    profile = None
    if arguments.model:
        from senseapp.networks.sources.catalogue import parse_model  # reads it, which other commands do without

        profile = load_card(parse_model(arguments.model)).profile
    read = partial(read_distiller_csv, title=arguments.file.stem, granularity=arguments.granularity, profile=profile)
    result = parsed(arguments.file, read, what="The table")
    result = replace(result, summary=headline(result))
    folder = RunFolder(arguments.out)
    if folder.finished:
        raise RunMismatch(f"{folder.path} holds a finished run already. Choose another folder, or delete it.")
    folder.make()
    with folder.exclusive():
        folder.claim(result.spec)
        folder.save_result(result)
    write_outputs(result, folder.path)
    print(result.summary)
    print_outputs(result, folder.path)
