"""Write the index of architectures that ships with senseapp: ``catalogue.json`` and ``recognition.json.gz``.

Every architecture of the installed timm and torchvision is built on torch's ``meta`` device, which takes no memory
but about a second each.

Usage: ``python -m scripts.build_catalogue``, on all processors.
"""

import contextlib
import json
import signal
import sys
from dataclasses import astuple
from multiprocessing import get_context
from pathlib import PurePosixPath
from urllib.parse import urlsplit

import timm
import torch
import torchvision
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from scripts.recognition import Surveyed, find_free_dimensions, pack_index
from senseapp.networks.checkpoints.architectures import RECOGNITION_FILE, BuiltWith, Shapes, shapes_of, weights_only
from senseapp.networks.profile import compressible_weights
from senseapp.networks.sources.catalogue import CATALOGUE_FILE, IMAGENET_CLASSES, CatalogueEntry
from senseapp.networks.sources.libraries import build_on_meta, input_configuration, output_width
from senseapp.networks.sources.torchvision_networks import FAMILIES, prepared_for, task_of, torchvision_names
from senseapp.records.spec import ModelSpec
from senseapp.tasks import CLASSIFICATION

_MOST_SECONDS = 120  # of one architecture


def all_architectures() -> list[tuple[str, str]]:
    """Return (library, name) of every architecture of the installed libraries, in the order of the index."""
    in_timm = [("timm", name) for name in sorted(timm.list_models())]
    return in_timm + [("torchvision", name) for task in FAMILIES for name in torchvision_names(task)]


def _survey_in_time(architecture: tuple[str, str]) -> tuple[CatalogueEntry, Surveyed] | str:
    """Survey one architecture; return the reason as text if it cannot be built or takes too long."""
    torch.set_num_threads(1)
    signal.signal(signal.SIGALRM, _too_late)
    signal.alarm(_MOST_SECONDS)
    try:
        return survey_architecture(*architecture)
    except Exception as error:
        return f"{'/'.join(architecture)}: {type(error).__name__}: {error}"
    finally:
        signal.alarm(0)


def _too_late(*_: object) -> None:
    raise TimeoutError("no result in time")


def _survey_all() -> list[tuple[CatalogueEntry, Surveyed]]:
    architectures, found = all_architectures(), []
    with get_context("spawn").Pool() as pool:
        for count, outcome in enumerate(pool.imap(_survey_in_time, architectures), start=1):
            if isinstance(outcome, str):
                print(f"left out: {outcome}", file=sys.stderr)
                continue
            found.append(outcome)
            print(f"\r{count} of {len(architectures)}  {outcome[0].name:50.50}", end="", file=sys.stderr)
    return found


def _catalogue_row(entry: CatalogueEntry) -> list[object]:
    *figures, task = astuple(entry)
    return figures if task == CLASSIFICATION.name else [*figures, task]


_OTHER = {"num_classes": 1013, "in_chans": 5}
"""Settings of the second build of each architecture, which no architecture has by itself."""


def survey_architecture(library: str, name: str) -> tuple[CatalogueEntry, Surveyed]:
    """Build the architecture twice on the ``meta`` device, run one image through it, and return its rows of the index.

    Its weights are those with 1,000 classes where it has none of its own.
    """
    module = build_on_meta(library, name)
    shape, num_classes, weights = _described(library, name, module)
    entry = CatalogueEntry(
        library=library,
        name=name,
        num_params=sum(parameter.numel() for parameter in module.parameters()),
        macs=count_macs(module, shape),
        input_shape=shape,
        num_layers=sum(1 for _ in compressible_weights(module)),
        num_classes=num_classes,
        weights=weights,
        task=CLASSIFICATION.name if library == "timm" else task_of(name),
    )
    if num_classes == 0:
        num_classes = IMAGENET_CLASSES
        module = build_on_meta(library, name, num_classes=num_classes)
    other_shapes, other_side = _build_other(library, name, shape[-1])
    shapes, built = _shapes(module), BuiltWith(num_classes=num_classes, in_chans=shape[0], img_size=shape[-1])
    free = find_free_dimensions(shapes, built, other_shapes, BuiltWith(**_OTHER, img_size=other_side))
    return entry, Surveyed(library, name, shape[-1], shapes, free)


def _build_other(library: str, name: str, side: int) -> tuple[Shapes, int]:
    """Return the shapes with everything chosen differently that can be, and the image side behind them."""
    attempts = (_OTHER | {"img_size": 2 * side}, _OTHER, {"num_classes": _OTHER["num_classes"]})
    for attempt in attempts:
        with contextlib.suppress(TypeError, ValueError, RuntimeError, AssertionError):
            return _shapes(build_on_meta(library, name, **attempt)), attempt.get("img_size", side)
    raise RuntimeError(f"{library}/{name} does not take another number of classes.")


def _shapes(module: nn.Module) -> Shapes:
    return weights_only(shapes_of(module.state_dict()))


def _described(library: str, name: str, module: nn.Module) -> tuple[tuple[int, int, int], int, str]:
    """Return input shape, number of classes, and where the library finds its default weights.

    These are named as in the cache, so that it can be told whether they are there: a repository of the Hub, or a file.
    """
    if library == "timm":
        published = timm.get_pretrained_cfg(name)
        weights = ""
        if published is not None and published.has_weights:
            weights = str(published.hf_hub_id or PurePosixPath(urlsplit(str(published.url)).path).name)
        return tuple(input_configuration(module)["input_size"]), output_width(module), weights
    found = torchvision.models.get_model_weights(name).DEFAULT
    shape = prepared_for(ModelSpec(library=library, name=name), module, found).input_shape
    return shape, len(found.meta["categories"]), PurePosixPath(urlsplit(found.url).path).name


def count_macs(module: nn.Module, input_shape: tuple[int, int, int]) -> int | None:
    """Return half of what torch's own counter finds in one image; None if the architecture cannot run on ``meta``.

    Source: ``torch.utils.flop_counter``, which counts a multiply-accumulate as two operations.
    """
    module.requires_grad_(False)  # the counter hooks what has gradients, and trips over tokens that are parameters
    torch.backends.mha.set_fastpath_enabled(False)  # the fused kernel of nn.MultiheadAttention has no shape rule
    counter = FlopCounterMode(display=False)
    try:
        with torch.no_grad(), counter:
            module(torch.empty((1, *input_shape), device="meta"))
    except (RuntimeError, NotImplementedError, ValueError, TypeError, AssertionError):
        return None
    finally:
        torch.backends.mha.set_fastpath_enabled(True)
    return counter.get_total_flops() // 2


def main() -> None:
    """Survey all architectures and write both files."""
    surveys = _survey_all()
    versions = {"timm": timm.__version__, "torchvision": torchvision.__version__.split("+")[0]}
    lines = ",\n".join(json.dumps(_catalogue_row(entry), separators=(",", ":")) for entry, _ in surveys)
    text = f'{{"versions": {json.dumps(versions)},\n"architectures": [\n{lines}\n]}}\n'
    CATALOGUE_FILE.write_text(text, encoding="utf-8")
    RECOGNITION_FILE.write_bytes(pack_index(surveyed for _, surveyed in surveys))


if __name__ == "__main__":
    main()
