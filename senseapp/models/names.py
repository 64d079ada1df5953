"""How people name a model: ``demo``, ``auto``, ``timm/NAME``, ``torchvision/NAME``, or a bare name."""

from __future__ import annotations

import difflib

from senseapp.errors import UnknownModel
from senseapp.models.catalogue import load_catalogue
from senseapp.spec import ModelSpec

AUTO = "auto"
_LIBRARIES = ("timm", "torchvision")


def parse_model(text: str) -> ModelSpec:
    """Return the spec that ``text`` names; ``auto`` is recognised from the checkpoint when it is loaded.

    Raises:
        UnknownModel: no architecture of that name, or both libraries have it.
    """
    text = text.strip()
    if text in ("demo", AUTO):
        return ModelSpec(library=text)  # type: ignore[arg-type]
    library, slash, name = text.partition("/")
    if not slash:
        return _bare_name(text)
    if library not in _LIBRARIES:
        raise UnknownModel(f"A model is written demo, auto, timm/NAME or torchvision/NAME, got {text!r}.")
    if _architecture(name) not in _names_of(library):
        raise unknown_model(name, library=library)
    return ModelSpec(library=library, name=name)  # type: ignore[arg-type]


def _bare_name(name: str) -> ModelSpec:
    homes = [library for library in _LIBRARIES if _architecture(name) in _names_of(library)]
    if len(homes) == 2:
        raise UnknownModel(f"Both libraries have {name!r}. Write timm/{name} or torchvision/{name}.")
    if not homes:
        raise unknown_model(name)
    return ModelSpec(library=homes[0], name=name)  # type: ignore[arg-type]


def _architecture(name: str) -> str:
    """Return the name without timm's weights tag (``resnet50.a1_in1k`` is ``resnet50``)."""
    return name.split(".", 1)[0]


def _names_of(library: str) -> frozenset[str]:
    return frozenset(entry.name for entry in load_catalogue() if entry.library == library)


def closest_names(name: str, *, library: str | None = None, count: int = 3) -> tuple[str, ...]:
    """Return the ``count`` most similar titles of the catalogue, the closest first."""
    titles = {
        entry.title: _similarity(name, entry.name) for entry in load_catalogue() if library in (None, entry.library)
    }
    return tuple(sorted(titles, key=lambda title: (-titles[title], title))[:count])


def _similarity(wanted: str, name: str) -> float:
    return difflib.SequenceMatcher(None, wanted.lower(), name).ratio()


def unknown_model(name: str, *, library: str | None = None) -> UnknownModel:
    """Return the error that names the closest architectures."""
    where = library or "Neither timm nor torchvision"
    has = "has no architecture" if library else "has an architecture"
    closest = ", ".join(closest_names(name, library=library))
    return UnknownModel(f"{where} {has} named {name!r}. The closest names are {closest}.")
