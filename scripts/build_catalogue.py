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
from collections.abc import Iterable
from functools import partial
from multiprocessing import get_context
from pathlib import PurePosixPath
from urllib.parse import urlsplit

import timm
import torch
import torchvision

from scripts.architecture_survey import OTHER_CHANNELS, OTHER_CLASSES, Survey, survey_architecture
from scripts.fingerprints import fingerprint_of, pack_fingerprints
from senseapp.networks.checkpoints.fingerprint import RECOGNITION_FILE, BuiltWith, Fingerprint
from senseapp.networks.sources.catalogue import CATALOGUE_FILE
from senseapp.networks.sources.torchvision_networks import FAMILIES, torchvision_names
from senseapp.tasks import CLASSIFICATION

_TIMEOUT_SECONDS = 120


def all_architectures() -> list[tuple[str, str]]:
    """Return (library, name) of every architecture of the installed libraries, in the order of the index."""
    in_timm = [("timm", name) for name in sorted(timm.list_models())]
    return in_timm + [("torchvision", name) for task in FAMILIES for name in torchvision_names(task)]


def _survey_in_time(architecture: tuple[str, str], timeout_seconds: int) -> Survey | str:
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


def _survey_all(processes: int, timeout_seconds: int) -> list[Survey]:
    survey = partial(_survey_in_time, timeout_seconds=timeout_seconds)
    architectures, found = all_architectures(), []
    with get_context("spawn").Pool(processes) as pool:
        for count, outcome in enumerate(pool.imap(survey, architectures), start=1):
            if isinstance(outcome, str):
                print(f"left out: {outcome}", file=sys.stderr)
                continue
            found.append(outcome)
            print(f"\r{count} of {len(architectures)}  {outcome.name:50.50}", end="", file=sys.stderr)
    return found


def write_index(surveys: Iterable[Survey]) -> None:
    """Write both files of the index."""
    surveys = list(surveys)
    versions = {"timm": timm.__version__, "torchvision": torchvision.__version__.split("+")[0]}
    lines = ",\n".join(json.dumps(_catalogue_row(survey), separators=(",", ":")) for survey in surveys)
    text = f'{{"versions": {json.dumps(versions)},\n"architectures": [\n{lines}\n]}}\n'
    CATALOGUE_FILE.write_text(text, encoding="utf-8")
    RECOGNITION_FILE.write_bytes(pack_fingerprints(_fingerprint(survey) for survey in surveys))


def _catalogue_row(survey: Survey) -> list[object]:
    return [
        survey.library,
        survey.name,
        survey.num_params,
        survey.macs,
        survey.input_shape,
        survey.num_layers,
        survey.num_classes,
        published_weights(survey.library, survey.name) if survey.pretrained else "",
        *([survey.task] if survey.task != CLASSIFICATION.name else []),
    ]


def published_weights(library: str, name: str) -> str:
    """Return where the library finds the weights that it takes by default: a repository of the Hub, or a file's name.

    The name is that under which the weights lie in the cache, so that it can be told whether they are there.
    """
    if library == "torchvision":
        return PurePosixPath(urlsplit(torchvision.models.get_model_weights(name).DEFAULT.url).path).name
    config = timm.get_pretrained_cfg(name)
    assert config is not None  # surveyed as published
    return str(config.hf_hub_id or PurePosixPath(urlsplit(str(config.url)).path).name)


def _fingerprint(survey: Survey) -> Fingerprint:
    channels, side = survey.input_shape[0], survey.input_shape[-1]
    built = BuiltWith(num_classes=survey.shape_classes, in_chans=channels, img_size=side)
    other = BuiltWith(num_classes=OTHER_CLASSES, in_chans=OTHER_CHANNELS, img_size=survey.other_size)
    return fingerprint_of(
        survey.library,
        survey.name,
        shapes=survey.shapes,
        built=built,
        other_shapes=survey.other_shapes,
        other=other,
    )


def main() -> None:
    """Build the index from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--timeout", type=int, default=_TIMEOUT_SECONDS, help="seconds for one architecture")
    arguments = parser.parse_args()
    write_index(_survey_all(arguments.processes, arguments.timeout))


if __name__ == "__main__":
    main()
