"""How people name a model: ``demo``, ``auto``, ``timm/NAME``, ``torchvision/NAME``, or a bare name."""

from __future__ import annotations

import difflib

from senseapp.errors import UnknownModel
from senseapp.models.catalogue import find_entry, load_catalogue
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
    library, name = text.split("/", 1) if "/" in text else ("", text)
    if "/" in text and library not in _LIBRARIES:
        raise UnknownModel(f"A model is written demo, auto, timm/NAME or torchvision/NAME, got {text!r}.")
    homes = [home for home in _LIBRARIES if library in ("", home) and find_entry(home, name)]
    if len(homes) == 2:
        raise UnknownModel(f"Both libraries have {name!r}. Write timm/{name} or torchvision/{name}.")
    if not homes:
        raise unknown_model(name, library=library)
    return ModelSpec(library=homes[0], name=name)  # type: ignore[arg-type]


def closest_names(name: str, *, library: str = "", count: int = 3) -> tuple[str, ...]:
    """Return the ``count`` most similar titles of the catalogue, of ``library`` if given, the closest first."""
    titles = {
        entry.title: difflib.SequenceMatcher(None, name.lower(), entry.name).ratio()
        for entry in load_catalogue()
        if library in ("", entry.library)
    }
    return tuple(sorted(titles, key=lambda title: (-titles[title], title))[:count])


def unknown_model(name: str, *, library: str = "") -> UnknownModel:
    """Return the error that names the closest architectures."""
    where = f"{library} has no architecture" if library else "Neither timm nor torchvision has an architecture"
    closest = ", ".join(closest_names(name, library=library))
    return UnknownModel(f"{where} named {name!r}. The closest names are {closest}.")
