"""Names of files that people take away: the network, then what the file really holds."""

from __future__ import annotations

import re
from pathlib import PurePath

from senseapp.descriptions import Effect, get
from senseapp.records.candidate import Candidate
from senseapp.records.schedule import Schedule
from senseapp.records.spec import ModelSpec

_DIGITS = "digits"  # the network of the first demo, whose spec has no name
_EFFECTS = {Effect.CHANNELS: "pruned", Effect.ZEROS: "sparse"}
_FORMS = {"int8": "int8", "mixed": "partly-int8"}


def file_name(model: ModelSpec, candidate: Candidate) -> str:
    """Return the name of a downloaded file: ``digits-pruned-int8.onnx``."""
    form = _FORMS.get(candidate.form, "")
    if candidate.form == "onnx" and candidate.deployment is not None and candidate.deployment.in_float:
        form = "int8-weights"  # of a search for int8 that computes nothing in int8
    return named(model, candidate.schedule, candidate.suffix, form)


def named(model: ModelSpec, schedule: Schedule | None, suffix: str, form: str = "") -> str:
    """Return the name of a file of a network with the weights of ``schedule``, or its original ones.

    >>> named(ModelSpec(), None, ".onnx", "int8")
    'digits-int8.onnx'
    """
    parts = [network_name(model), *([] if schedule is None else _effects(schedule)), form]
    return "-".join(filter(None, parts)) + suffix


def network_name(model: ModelSpec) -> str:
    """Return the name of a network as the part of a file's name.

    >>> network_name(ModelSpec(library="timm", name="resnet18.a1_in1k"))
    'resnet18-a1-in1k'
    """
    name = PurePath(model.checkpoint.replace("\\", "/")).stem or model.name or _DIGITS
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:60].rstrip("-") or "network"


def _effects(schedule: Schedule) -> list[str]:
    """Return what the levels of a schedule do to weights, in words, for those that do anything."""
    found: dict[str, set[float]] = {}
    for entry in schedule.entries:
        if entry.compression != "none" and entry.level != get(entry.compression).scale.untouched:
            found.setdefault(entry.compression, set()).add(entry.level)
    parts = []
    for kind, levels in sorted(found.items(), key=lambda item: get(item[0]).order):
        ends = "-".join(f"{level:g}" for level in sorted({min(levels), max(levels)}))
        parts.append(_EFFECTS.get(get(kind).effect, f"{ends}bit"))
    return parts
