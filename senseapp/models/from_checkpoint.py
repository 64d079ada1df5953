"""Build the architecture that a checkpoint belongs to, and load the checkpoint into it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

from senseapp.errors import InvalidCheckpoint, InvalidSpec
from senseapp.models.checkpoint import Checkpoint, read_checkpoint
from senseapp.models.fitting import load_tensors
from senseapp.models.free_dimensions import ReadOff
from senseapp.models.head import HeadFit, Layers, fit_but_for_head
from senseapp.models.loaded import LoadedModel
from senseapp.models.recognise import Candidate, fingerprint_named, recognise
from senseapp.models.recognition_index import Fingerprint
from senseapp.models.seeded import unset_weights
from senseapp.models.signature import weights_only
from senseapp.spec import ModelSpec

__all__ = ["Proposal", "load_from_checkpoint", "propose"]

_FRESH_HEAD_NOTE = (
    "The checkpoint has no classifier, so a random one stands in: accuracy means nothing and labels are not used. KL "
    "shows how far the output moves."
)
_WORDS = {"num_classes": "classes", "in_chans": "input channels", "img_size": "pixels a side"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """What to build for a checkpoint.

    Attributes:
        spec: the architecture, sized as the weights say.
        checkpoint: its weights, under the names that the architecture has.
        fresh_head: name of the classifier that the checkpoint lacks; empty where it has one.
        notes: sentences on the choice.
    """

    spec: ModelSpec
    checkpoint: Checkpoint
    fresh_head: str = ""
    notes: tuple[str, ...] = ()


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
    proposal = propose(spec, checkpoint)
    report(f"Building {proposal.spec.title}")
    with unset_weights():
        loaded = build(proposal.spec)
    fitted = load_tensors(loaded.module, proposal.checkpoint, title=proposal.spec.title, fresh_head=proposal.fresh_head)
    return dataclasses.replace(
        loaded,
        pretrained=True,
        class_names=() if proposal.fresh_head else loaded.class_names,
        fresh_head=bool(proposal.fresh_head),
        notes=(*loaded.notes, *checkpoint.notes, *proposal.notes, *fitted),
    )


def propose(spec: ModelSpec, checkpoint: Checkpoint) -> Proposal:
    """Return the architecture to build for ``checkpoint``, sized as its weights say.

    Raises:
        InvalidCheckpoint: no known architecture fits, or the weights contradict what ``spec`` asks for.
    """
    notes: tuple[str, ...] = ()
    if spec.library == "auto":
        candidates = recognise(checkpoint.shapes, arch_hint=checkpoint.arch_hint)
        spec, notes = _choose(spec, candidates, checkpoint.file_name)
    fingerprint = fingerprint_named(spec.library, spec.name)
    head = _differing_head(fingerprint, checkpoint)
    if head is not None and head.missing and spec.num_classes is None:
        raise _without_classifier(spec.title, checkpoint.file_name)
    if head is not None:
        checkpoint = dataclasses.replace(checkpoint, tensors=head.renamed(checkpoint.tensors))
        notes = (*notes, _FRESH_HEAD_NOTE if head.missing else _renamed_note(head))
    read = fingerprint.free.read_off(weights_only(checkpoint.shapes)) if fingerprint else None
    sized = _sized(spec, read, own_size=fingerprint.img_size if fingerprint else None, checkpoint=checkpoint)
    return Proposal(
        spec=dataclasses.replace(sized, checkpoint="", use_ema=False),
        checkpoint=checkpoint,
        fresh_head=head.own if head is not None and head.missing else "",
        notes=notes,
    )


def _differing_head(fingerprint: Fingerprint | None, checkpoint: Checkpoint) -> HeadFit | None:
    return None if fingerprint is None else fit_but_for_head(fingerprint, Layers(weights_only(checkpoint.shapes)))


def _renamed_note(head: HeadFit) -> str:
    return f"The classifier, called {head.found} in the file, was taken as {head.own}: its size is right."


def _without_classifier(title: str, file_name: str) -> InvalidCheckpoint:
    return InvalidCheckpoint(
        f"The weights in {file_name} are those of {title} without its classifier. Bring the whole checkpoint, or "
        "measure with a random classifier of a given number of classes: accuracy then means nothing, KL shows how far "
        "the output moves."
    )


def _choose(spec: ModelSpec, candidates: tuple[Candidate, ...], file_name: str) -> tuple[ModelSpec, tuple[str, ...]]:
    if candidates and candidates[0].head is not None and candidates[0].head.missing:
        return dataclasses.replace(spec, library=candidates[0].library, name=candidates[0].name), ()  # type: ignore[arg-type]
    if not candidates or not candidates[0].fits:
        closest = ", ".join(f"{item.title} ({item.score:.0%} alike)" for item in candidates[:3])
        raise InvalidCheckpoint(
            f"The weights in {file_name} are of no architecture of timm or torchvision"
            f"{f'; the closest are {closest}' if closest else ''}. "
            "Choose the architecture by name to see what differs."
        )
    best = candidates[0]
    twins = [item.title for item in candidates[1:] if item.score == best.score]
    but = "" if best.exact else " but for the name of the classifier"
    note = f"Recognised as {best.title}: every name and shape fits{but}."
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
