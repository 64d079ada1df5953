"""The index of timm's and torchvision's architectures: search, and model specs by name.

Imports neither library nor torch. ``scripts/build_catalogue.py`` writes the index.
"""

import difflib
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path

from senseapp.core.errors import UnknownModel
from senseapp.descriptions import SOURCES
from senseapp.records.spec import ModelSpec

IMAGENET_CLASSES = 1000  # of ILSVRC 2012
_SEPARATORS = re.compile(r"[-_. ]+")
CATALOGUE_FILE = Path(__file__).with_name("catalogue.json")
_USUAL = "classification"  # of architectures whose row of the index names no task


@dataclass(frozen=True, slots=True)
class CatalogueEntry:
    """One architecture as its library builds it.

    Attributes:
        library: ``timm`` or ``torchvision``.
        name: its name there, without a weights tag.
        num_params: number of trainable parameters.
        macs: multiply-accumulates for one image, products of two activations (inside attention) included; None
            where they could not be counted.
        input_shape: one image, (C, H, W).
        num_layers: compressible layers.
        num_classes: width of the output; 0 for an architecture without a classifier of its own.
        weights: the library's default download, a repository of the Hub or a file; empty where nothing was published.
        task: one of :data:`senseapp.tasks.TASKS` that its output is made for.
    """

    library: str
    name: str
    num_params: int
    macs: int | None
    input_shape: tuple[int, int, int]
    num_layers: int
    num_classes: int
    weights: str
    task: str

    @property
    def title(self) -> str:
        """Display name, for example ``timm/resnet18``."""
        return f"{self.library}/{self.name}"

    @property
    def pretrained(self) -> bool:
        """Whether weights were published for it."""
        return bool(self.weights)


@cache
def load_catalogue() -> tuple[CatalogueEntry, ...]:
    """Return all architectures, timm's first, each library's by name."""
    entries = []
    rows = json.loads(CATALOGUE_FILE.read_text(encoding="utf-8"))["architectures"]
    for library, name, num_params, macs, shape, num_layers, num_classes, weights, *task in rows:
        own = task[0] if task else _USUAL
        entries.append(
            CatalogueEntry(library, name, num_params, macs, tuple(shape), num_layers, num_classes, weights, own)
        )
    return tuple(entries)


@cache
def _by_title() -> dict[str, CatalogueEntry]:
    return {entry.title: entry for entry in load_catalogue()}


def find_entry(library: str, name: str) -> CatalogueEntry | None:
    """Return the architecture of that name, ignoring a weights tag after a dot, or None."""
    return _by_title().get(f"{library}/{name.split('.', 1)[0]}")


def task_of_architecture(library: str, name: str) -> str:
    """Return the task that an architecture is made for; empty where the catalogue does not have it."""
    entry = find_entry(library, name)
    return entry.task if entry else ""


POPULAR = (
    *("timm/resnet50", "timm/resnet18", "timm/mobilenetv3_large_100", "timm/efficientnet_b0"),
    *("timm/vit_small_patch16_224", "timm/convnext_tiny", "torchvision/mobilenet_v2", "timm/deit_tiny_patch16_224"),
    *("timm/swin_tiny_patch4_window7_224", "timm/densenet121", "timm/vit_base_patch16_224", "timm/vgg16"),
)
"""Popular architectures, by title."""


def suggest(text: str, fits: Callable[[CatalogueEntry], bool], limit: int = 50) -> list[CatalogueEntry]:
    """Return up to ``limit`` architectures that ``fits`` accepts: matches of ``text``, or popular ones first."""
    if text.strip():
        return [entry for entry in search(text, limit=None) if fits(entry)][:limit]
    popular = [_by_title()[title] for title in POPULAR]
    return [entry for entry in dict.fromkeys((*popular, *load_catalogue())) if fits(entry)][:limit]


def search(text: str, library: str | None = None, limit: int | None = 50) -> list[CatalogueEntry]:
    """Return up to ``limit`` architectures, or all, that match ``text``, the likeliest first.

    In order: the exact name, names that start with the text, names that contain it, names that contain each of its
    words in any order. Capitals and separators are ignored (``ResNet-18``), and the text may start with a library
    (``timm/vit``). Within each of these the shorter name comes first.
    """
    first, slash, second = text.strip().lower().partition("/")
    start, name = (first, second) if slash else ("", first)
    compact, words = _compact(name), _SEPARATORS.sub(" ", name).split()
    found = [
        (rank, len(entry.name), entry.name, position)
        for position, entry in enumerate(load_catalogue())
        if library in (None, entry.library)
        and entry.library.startswith(start)
        and (rank := _rank(_compact(entry.name), compact, words)) is not None
    ]
    return [load_catalogue()[position] for *_, position in sorted(found)[:limit]]


@lru_cache(maxsize=8192)  # enough for the catalogue, but bounded for typed texts
def _compact(text: str) -> str:
    return _SEPARATORS.sub("", text.lower())


def _rank(name: str, wanted: str, words: list[str]) -> int | None:
    """Return 0 for the best match of a compact name and more for worse ones; None for no match."""
    if name == wanted:
        return 0
    if name.startswith(wanted):
        return 1
    if wanted in name:
        return 2
    return 3 if all(word in name for word in words) else None


_LIBRARIES = ("timm", "torchvision")


def parse_model(text: str, *, task: str = "") -> ModelSpec:
    """Return the spec that ``text`` names, with the task of its source, or ``task`` where the source says none.

    ``auto`` is recognised from the checkpoint when it is loaded.

    Raises UnknownModel if no library has that name, or both have it.
    """
    text = text.strip()
    names_source = "/" in text or (text in SOURCES and text not in _LIBRARIES)
    library, slash, name = text.partition("/") if names_source else ("", "", text)
    source = SOURCES.get(library)
    if source is not None and source.is_runnable and library not in _LIBRARIES:
        return ModelSpec(library=library, name=name, task=source.task_of(name) or task)
    if slash and library not in _LIBRARIES:
        raise UnknownModel(f"A model is written {_written()}, got {text!r}.")
    libraries = [known for known in _LIBRARIES if library in ("", known) and find_entry(known, name)]
    if len(libraries) == 2:
        raise UnknownModel(f"Both libraries have {name!r}. Write timm/{name} or torchvision/{name}.")
    if not libraries:
        raise unknown_model(name, library=library)
    return ModelSpec(library=libraries[0], name=name)


def _written() -> str:
    """Return the accepted forms of a model's name: ``demo, auto, timm/NAME or torchvision/NAME``."""
    found = [each.name + "/NAME" * each.needs_name for each in SOURCES.values() if each.is_runnable]
    *others, last = sorted(found, key=lambda text: text.endswith("/NAME"))
    return f"{', '.join(others)} or {last}"


def closest_names(name: str, *, library: str = "") -> tuple[str, ...]:
    """Return the three most similar titles of the catalogue, of ``library`` if given, the most similar first."""
    titles = {
        entry.title: difflib.SequenceMatcher(None, name.lower(), entry.name).ratio()
        for entry in load_catalogue()
        if library in ("", entry.library)
    }
    return tuple(sorted(titles, key=lambda title: (-titles[title], title))[:3])


_NOT_MEASURED = {
    ("mc3_", "mvit_", "r2plus1d_", "r3d_", "s3d", "swin3d_"): "a video network: it takes clips, not images",
    ("raft_",): "an optical-flow network: it takes pairs of pictures",
    ("quantized_",): "quantized already: choose the same network without “quantized_”, which is measured in all bits",
}
"""Families of torchvision that are not in the catalogue, by how their names begin, and why."""


def family_refusal(name: str) -> str:
    """Return one sentence on an architecture of torchvision that is not measured; empty for all others."""
    known = name.strip().lower().removeprefix("torchvision/")
    found = (why for starts, why in _NOT_MEASURED.items() if known.startswith(starts))
    return next((f"{known!r} of torchvision is {why}." for why in found), "")


def unknown_model(name: str, *, library: str = "") -> UnknownModel:
    """Return the error, with the reason where the architecture is one that is not measured, else the closest names."""
    if library != "timm" and (refused := family_refusal(name)):
        return UnknownModel(refused)
    where = f"{library} has no architecture" if library else "Neither timm nor torchvision has an architecture"
    closest = ", ".join(closest_names(name, library=library))
    return UnknownModel(f"{where} named {name!r}. The closest names are {closest}.")
