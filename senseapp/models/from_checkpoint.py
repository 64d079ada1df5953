"""Build the architecture that a checkpoint belongs to, and load the checkpoint into it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from senseapp.errors import InvalidCheckpoint, InvalidSpec
from senseapp.models.checkpoint import Checkpoint, read_checkpoint
from senseapp.models.fitting import load_tensors
from senseapp.models.free_dimensions import ReadOff
from senseapp.models.loaded import LoadedModel
from senseapp.models.recognise import Candidate, fingerprint_named, recognise
from senseapp.models.seeded import unset_weights
from senseapp.models.signature import weights_only
from senseapp.spec import ModelSpec

__all__ = ["load_from_checkpoint", "propose_spec"]

_WORDS = {"num_classes": "classes", "in_chans": "input channels", "img_size": "pixels a side"}


def load_from_checkpoint(
    spec: ModelSpec, build: Callable[[ModelSpec], LoadedModel], report: Callable[[str], None]
) -> LoadedModel:
    """Return the network of ``spec`` with the weights of ``spec.checkpoint``.

    Args:
        spec: with a checkpoint; library ``auto`` recognises the architecture.
        build: builds a spec without a checkpoint.
        report: called with one short sentence before each long step.

    Raises:
        InvalidCheckpoint: it cannot be read, belongs to no known architecture, or does not fit the one named.
        InvalidSpec: published weights and a checkpoint were both asked for.
    """
    if spec.pretrained:
        raise InvalidSpec("Choose published weights or a checkpoint, not both.")
    report("Reading the checkpoint")
    checkpoint = read_checkpoint(spec.checkpoint, use_ema=spec.use_ema)
    if spec.library == "auto":
        report("Recognising the architecture")
    named, notes = propose_spec(spec, checkpoint)
    report(f"Building {named.title}")
    with unset_weights():
        loaded = build(named)
    fitted = load_tensors(loaded.module, checkpoint, title=named.title)
    return dataclasses.replace(loaded, pretrained=True, notes=(*loaded.notes, *checkpoint.notes, *notes, *fitted))


def propose_spec(spec: ModelSpec, checkpoint: Checkpoint) -> tuple[ModelSpec, tuple[str, ...]]:
    """Return the architecture to build for ``checkpoint``, sized as its weights say, and notes on the choice.

    Raises:
        InvalidCheckpoint: no known architecture fits, or the weights contradict what ``spec`` asks for.
    """
    notes: tuple[str, ...] = ()
    if spec.library == "auto":
        candidates = recognise(checkpoint.shapes, arch_hint=checkpoint.arch_hint)
        spec, notes = _choose(spec, candidates, checkpoint.file_name)
    fingerprint = fingerprint_named(spec.library, spec.name)
    read = fingerprint.free.read_off(weights_only(checkpoint.shapes)) if fingerprint else None
    sized = _sized(spec, read, own_size=fingerprint.img_size if fingerprint else None, checkpoint=checkpoint)
    return dataclasses.replace(sized, checkpoint="", use_ema=False), notes


def _choose(spec: ModelSpec, candidates: tuple[Candidate, ...], file_name: str) -> tuple[ModelSpec, tuple[str, ...]]:
    if not candidates or not candidates[0].exact:
        closest = ", ".join(f"{item.title} ({item.score:.0%} alike)" for item in candidates[:3])
        raise InvalidCheckpoint(
            f"The weights in {file_name} are of no architecture of timm or torchvision"
            f"{f'; the closest are {closest}' if closest else ''}. "
            "Choose the architecture by name to see what differs."
        )
    best = candidates[0]
    twins = [item.title for item in candidates[1:] if item.score == best.score]
    note = f"Recognised as {best.title}: every name and shape fits."
    if twins:
        note += (
            f" {', '.join(twins[:3])}{' and others' if len(twins) > 3 else ''} have the same names and shapes, "
            "so check that the baseline is as good as you expect."
        )
    return dataclasses.replace(spec, library=best.library, name=best.name), (note,)  # type: ignore[arg-type]


def _sized(spec: ModelSpec, read: ReadOff | None, *, own_size: int | None, checkpoint: Checkpoint) -> ModelSpec:
    """Fill in what the weights tell, and refuse what they contradict."""
    changes: dict[str, int] = {}
    for what in _WORDS if read is not None else ():
        found, wanted = getattr(read, what), getattr(spec, what)
        if found is None or (what == "img_size" and found == own_size and wanted is None):
            continue
        if wanted not in (None, found):
            raise InvalidCheckpoint(
                f"{checkpoint.file_name} was made for {found} {_WORDS[what]}, got {what} {wanted}. "
                f"Leave it empty to take {found}."
            )
        changes[what] = found
    return dataclasses.replace(spec, **changes)  # type: ignore[arg-type]
