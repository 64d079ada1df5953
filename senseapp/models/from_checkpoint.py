"""Build the architecture that a checkpoint belongs to, and load the checkpoint into it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

from torch import nn

from senseapp.errors import InvalidCheckpoint, InvalidSpec
from senseapp.models.by_order import BY_ORDER_NOTE, named_by_order, ordered_weights
from senseapp.models.checkpoint import Checkpoint, read_checkpoint
from senseapp.models.fingerprint import BuiltWith
from senseapp.models.fitting import load_tensors
from senseapp.models.loaded import LoadedModel
from senseapp.models.recognise import Candidate, Layers, fingerprint_named, fit_but_for_head, fit_by_order, recognise
from senseapp.models.seeded import unset_weights
from senseapp.spec import ModelSpec

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
        order: the checkpoint's names in the architecture's order, where only order and shapes fit; else empty.
        notes: sentences on the choice.
    """

    spec: ModelSpec
    checkpoint: Checkpoint
    fresh_head: str = ""
    order: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def fitted(self, module: nn.Module) -> Checkpoint:
        """Return the checkpoint with its weights under the names that ``module``, the architecture, has.

        Raises:
            InvalidCheckpoint: order and shapes fit, but a negative number would become a variance.
        """
        if not self.order:
            return self.checkpoint
        checkpoint, title = self.checkpoint, self.spec.title
        named = named_by_order(module, checkpoint.tensors, self.order, file_name=checkpoint.file_name, title=title)
        return dataclasses.replace(checkpoint, tensors=named)


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
    weights = proposal.fitted(loaded.module)
    fitted = load_tensors(loaded.module, weights, title=proposal.spec.title, fresh_head=proposal.fresh_head)
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
        spec, notes = _choose(spec, recognised(checkpoint), checkpoint.file_name)
    fingerprint, layers = fingerprint_named(spec.library, spec.name), Layers(checkpoint.shapes)
    head = ordered = read = None
    if fingerprint is not None:
        head = fit_but_for_head(fingerprint, layers)
        if head is None and not fingerprint.fits(layers.shapes, layers.signature):
            ordered = fit_by_order(fingerprint, ordered_weights(checkpoint.tensors))
        read = ordered or fingerprint.free.read_off(head.renamed(layers.shapes) if head else layers.shapes)
    if head is not None and head.missing and spec.num_classes is None:
        raise InvalidCheckpoint(
            f"The weights in {checkpoint.file_name} are those of {spec.title} without its classifier. Bring the "
            "whole checkpoint, or measure with a random classifier of a given number of classes: accuracy then means "
            "nothing, KL shows how far the output moves."
        )
    if head is not None:
        checkpoint = dataclasses.replace(checkpoint, tensors=head.renamed(checkpoint.tensors))
        renamed = f"The classifier, called {head.found} in the file, was taken as {head.own}: its size is right."
        notes = (*notes, _FRESH_HEAD_NOTE if head.missing else renamed)
    if ordered is not None and not notes:
        notes = (BY_ORDER_NOTE.format(title=spec.title),)
    sized = _sized(spec, read, own_size=fingerprint.img_size if fingerprint else None, file_name=checkpoint.file_name)
    return Proposal(
        spec=dataclasses.replace(sized, checkpoint="", use_ema=False),
        checkpoint=checkpoint,
        fresh_head=head.own if head is not None and head.missing else "",
        order=() if ordered is None else ordered.order,
        notes=notes,
    )


def recognised(checkpoint: Checkpoint) -> tuple[Candidate, ...]:
    """Return the architectures that ``checkpoint`` may belong to, the likeliest first."""
    return recognise(
        checkpoint.shapes,
        arch_hint=checkpoint.arch_hint,
        file_name=checkpoint.file_name.rpartition(".")[0],
        orders=ordered_weights(checkpoint.tensors),
    )


def look_alikes(spec: ModelSpec) -> tuple[tuple[ModelSpec, ...], tuple[str, ...]]:
    """Return the architectures that the checkpoint of ``spec``, whose library is ``auto``, fits equally well.

    The one that :func:`propose` takes comes first; with it, sentences on how it was recognised.

    Raises:
        InvalidCheckpoint: it cannot be read, or fits no architecture.
    """
    checkpoint = read_checkpoint(spec.checkpoint, use_ema=spec.use_ema)
    found = recognised(checkpoint)
    first, notes = _choose(spec, found, checkpoint.file_name)
    others = [
        dataclasses.replace(spec, library=item.library, name=item.name)  # type: ignore[arg-type]
        for item in found[1:]
        if item.fits and item.score == found[0].score
    ]
    return (first, *others), notes


def _choose(spec: ModelSpec, candidates: tuple[Candidate, ...], file_name: str) -> tuple[ModelSpec, tuple[str, ...]]:
    if candidates and candidates[0].head is not None and candidates[0].head.missing:
        return dataclasses.replace(spec, library=candidates[0].library, name=candidates[0].name), ()  # type: ignore[arg-type]
    if not candidates or not candidates[0].fits:
        closest = ", ".join(f"{item.title} ({item.score:.0%} alike)" for item in candidates[:3])
        order = "by their names or by their order"
        if file_name.endswith(".safetensors"):
            order = "by their names (a .safetensors file sorts its weights by name, so their order cannot tell)"
        raise InvalidCheckpoint(
            f"The weights in {file_name} are of no architecture of timm or torchvision, {order}"
            f"{f'; the closest are {closest}' if closest else ''}. "
            "Choose the architecture by name to see what differs."
        )
    best = candidates[0]
    twins = [item.title for item in candidates[1:] if item.score == best.score]
    but = "" if best.exact else " but for the name of the classifier"
    note = f"Recognised as {best.title}: every name and shape fits{but}."
    if best.order:
        note = BY_ORDER_NOTE.format(title=best.title)
    if twins:
        same = "the same order and shapes" if best.order else "the same names and shapes"
        has = "has" if len(twins) == 1 else "have"
        note += (
            f" {', '.join(twins[:3])}{' and others' if len(twins) > 3 else ''} {has} {same}, "
            "so check that the baseline is as good as you expect."
        )
    return dataclasses.replace(spec, library=best.library, name=best.name), (note,)  # type: ignore[arg-type]


def _sized(spec: ModelSpec, read: BuiltWith[int | None] | None, *, own_size: int | None, file_name: str) -> ModelSpec:
    """Fill in what the weights tell, and refuse what they contradict."""
    changes: dict[str, int] = {}
    for what in _WORDS if read is not None else ():
        found, wanted = getattr(read, what), getattr(spec, what)
        if found is None or (what == "img_size" and found == own_size and wanted is None):
            continue
        if wanted not in (None, found):
            raise InvalidCheckpoint(
                f"{file_name} was made for {found} {_WORDS[what]}, got {what} {wanted}. Leave it empty to take {found}."
            )
        changes[what] = found
    return dataclasses.replace(spec, **changes)  # type: ignore[arg-type]
