"""Write the index of architectures that ships with senseapp: ``catalogue.json`` and ``recognition.json.gz``.

Every architecture of the installed timm and torchvision is built on torch's ``meta`` device, which takes no memory
but about a second each.

Usage: ``python -m scripts.build_catalogue [--processes N] [--timeout SECONDS]``
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from dataclasses import astuple
from functools import partial
from multiprocessing import get_context

import timm
import torch
import torchvision

from scripts.architecture_survey import survey_architecture
from scripts.fingerprints import pack_fingerprints
from senseapp.networks.checkpoints.fingerprint import RECOGNITION_FILE, Fingerprint
from senseapp.networks.sources.catalogue import CATALOGUE_FILE, CatalogueEntry
from senseapp.networks.sources.torchvision_networks import FAMILIES, torchvision_names
from senseapp.tasks import CLASSIFICATION


def all_architectures() -> list[tuple[str, str]]:
    """Return (library, name) of every architecture of the installed libraries, in the order of the index."""
    in_timm = [("timm", name) for name in sorted(timm.list_models())]
    return in_timm + [("torchvision", name) for task in FAMILIES for name in torchvision_names(task)]


def _survey_in_time(architecture: tuple[str, str], timeout_seconds: int) -> tuple[CatalogueEntry, Fingerprint] | str:
    """Survey one architecture; return the reason as text if it cannot be built or takes too long."""
    torch.set_num_threads(1)
    signal.signal(signal.SIGALRM, _too_late)
    signal.alarm(timeout_seconds)
    try:
        return survey_architecture(*architecture)
    except Exception as error:
        return f"{'/'.join(architecture)}: {type(error).__name__}: {error}"
    finally:
        signal.alarm(0)


def _too_late(*_: object) -> None:
    raise TimeoutError("no result in time")


def _survey_all(processes: int, timeout_seconds: int) -> list[tuple[CatalogueEntry, Fingerprint]]:
    survey = partial(_survey_in_time, timeout_seconds=timeout_seconds)
    architectures, found = all_architectures(), []
    with get_context("spawn").Pool(processes) as pool:
        for count, outcome in enumerate(pool.imap(survey, architectures), start=1):
            if isinstance(outcome, str):
                print(f"left out: {outcome}", file=sys.stderr)
                continue
            found.append(outcome)
            print(f"\r{count} of {len(architectures)}  {outcome[0].name:50.50}", end="", file=sys.stderr)
    return found


def _catalogue_row(entry: CatalogueEntry) -> list[object]:
    *figures, task = astuple(entry)
    return figures if task == CLASSIFICATION.name else [*figures, task]


def main() -> None:
    """Build the index from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--timeout", type=int, default=120, help="seconds for one architecture")
    arguments = parser.parse_args()
    surveys = _survey_all(arguments.processes, arguments.timeout)
    versions = {"timm": timm.__version__, "torchvision": torchvision.__version__.split("+")[0]}
    lines = ",\n".join(json.dumps(_catalogue_row(entry), separators=(",", ":")) for entry, _ in surveys)
    text = f'{{"versions": {json.dumps(versions)},\n"architectures": [\n{lines}\n]}}\n'
    CATALOGUE_FILE.write_text(text, encoding="utf-8")
    RECOGNITION_FILE.write_bytes(pack_fingerprints(fingerprint for _, fingerprint in surveys))


if __name__ == "__main__":
    main()
