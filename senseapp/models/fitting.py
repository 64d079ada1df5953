"""Build the architecture that a checkpoint belongs to and load its weights, or explain why they do not fit."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from senseapp.core.errors import InvalidCheckpoint, InvalidSpec
from senseapp.models.checkpoint import Checkpoint, read_checkpoint
from senseapp.models.fingerprint import COMPUTED_SUFFIXES, BuiltWith, weights_only
from senseapp.models.loaded import LoadedModel, seeded_weights, skip_weight_init
from senseapp.models.recognise import (
    BY_ORDER_NOTE,
    Candidate,
    Layers,
    fingerprint_named,
    fit_but_for_head,
    fit_by_order,
    named_by_order,
    ordered_weights,
    recognise,
)
from senseapp.records.inputs import MatchReport, Mismatch
from senseapp.records.spec import ModelSpec

_TRAINING_ONLY_PREFIXES = ("AuxLogits.", "aux1.", "aux2.")
_LISTED_AT_MOST = 3


def match_state_dict(module: nn.Module, tensors: Mapping[str, Tensor], *, fresh_head: str = "") -> MatchReport:
    """Compare ``tensors`` with the state dict of ``module`` and say why they do not fit, if they do not.

    The weights of the layer ``fresh_head`` may be missing.
    """
    expected, found = (
        {name: tuple(tensor.shape) for name, tensor in weights.items()} for weights in (module.state_dict(), tensors)
    )
    own = weights_only(expected)
    missing = [
        Mismatch(name, shape, None)
        for name, shape in own.items()
        if name not in found and not (fresh_head and name.rpartition(".")[0] == fresh_head)
    ]
    wrong = [Mismatch(name, own[name], found[name]) for name in own if name in found and found[name] != own[name]]
    surplus = [name for name in found if name not in expected]
    unexpected = [Mismatch(name, None, found[name]) for name in surplus if not _is_ignored(name)]
    return MatchReport(
        differences=(*missing, *wrong, *unexpected),
        ignored=tuple(filter(_is_ignored, surplus)),
        cause=_likely_cause(list(expected), missing, unexpected, wrong),
    )


def _is_ignored(name: str) -> bool:
    return name.endswith(COMPUTED_SUFFIXES) or name.startswith(_TRAINING_ONLY_PREFIXES)


def _likely_cause(names: list[str], missing: list[Mismatch], unexpected: list[Mismatch], wrong: list[Mismatch]) -> str:
    """Return the first explanation that accounts for every difference."""
    if not (missing or unexpected or wrong):
        return ""
    head = names[-1].rpartition(".")[0] + "."  # the last layer that has weights
    if len(missing) > len(names) // 2:
        return "The checkpoint was made for another architecture: most names differ."
    if wrong and not (missing or unexpected):
        return _cause_of_shapes(names, head, wrong)
    if all(item.name.startswith(head) for item in missing) and not wrong:
        if not unexpected:
            return "The checkpoint has no classifier: it holds the features only."
        if missing:
            return f"The checkpoint has another classifier in place of {head.rstrip('.')}."
        return "The checkpoint holds more than this architecture: a larger variant, or a second network beside it."
    return "The checkpoint was made for a variant of this architecture, or for another version of its library."


def _cause_of_shapes(names: list[str], head: str, wrong: list[Mismatch]) -> str:
    if all(item.name.startswith(head) for item in wrong):
        return (
            f"The checkpoint has {(wrong[0].found or (0,))[0]} classes, "
            f"the network was built with {(wrong[0].expected or (0,))[0]}."
        )
    first = names[0].rpartition(".")[0]
    if all(item.name.rpartition(".")[0] == first for item in wrong):
        return "The checkpoint was made for images with another number of channels."
    if all("pos" in item.name or "bias_table" in item.name or "rel_" in item.name for item in wrong):
        return "The checkpoint was made for another image size."
    return "The checkpoint was made for a wider, narrower or otherwise different variant of this architecture."


def load_tensors(module: nn.Module, checkpoint: Checkpoint, *, title: str, fresh_head: str = "") -> tuple[str, ...]:
    """Copy the checkpoint's weights into ``module``, as float32; return the notes a person should read.

    ``fresh_head`` names a classifier that the checkpoint lacks; it is drawn from a fixed seed.

    Raises:
        InvalidCheckpoint: a weight is missing, surplus or of another shape; the module is unchanged.
    """
    report = match_state_dict(module, checkpoint.tensors, fresh_head=fresh_head)
    if not report.fits:
        raise InvalidCheckpoint(_mismatch_sentence(report, checkpoint.file_name, title))
    with torch.no_grad():
        for name, tensor in module.state_dict().items():
            if name in checkpoint.tensors and not name.endswith(COMPUTED_SUFFIXES):
                tensor.copy_(checkpoint.tensors[name])
    if fresh_head:
        _initialise_head(module.get_submodule(fresh_head))
    ignored = [name for name in report.ignored if name.startswith(_TRAINING_ONLY_PREFIXES)]
    return (f"Left out {len(ignored)} weights of heads that serve training only.",) if ignored else ()


def _initialise_head(head: nn.Module) -> None:
    with seeded_weights(), torch.no_grad():
        for name, parameter in head.named_parameters():
            nn.init.zeros_(parameter) if name == "bias" else nn.init.xavier_uniform_(parameter)


def _mismatch_sentence(report: MatchReport, file_name: str, title: str) -> str:
    names: dict[str, list[str]] = {"missing": [], "unexpected": [], "of another shape": []}
    for item in report.differences:
        if item.kind == "wrong shape":
            names["of another shape"].append(f"{item.name} {item.found} for {item.expected}")
        else:
            names[item.kind].append(item.name)
    parts = [f"{len(found)} {what} ({_some(found)})" for what, found in names.items() if found]
    return (
        f"{file_name} does not fit {title}: {'; '.join(parts)}. {report.cause} "
        "Choose the architecture auto to have it recognised, or the checkpoint that belongs to this one."
    )


def _some(names: list[str]) -> str:
    return ", ".join(names[:_LISTED_AT_MOST]) + (", …" if len(names) > _LISTED_AT_MOST else "")


_FRESH_HEAD_NOTE = (
    "The checkpoint has no classifier, so a random one stands in: accuracy means nothing and labels are not used. KL "
    "shows how far the output moves."
)
_UNITS = {"num_classes": "classes", "in_chans": "input channels", "img_size": "pixels a side"}


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

    ``build`` builds a spec without a checkpoint; ``report`` is told one sentence before each long step.

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
    with skip_weight_init():
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


def propose(spec: ModelSpec, checkpoint: Checkpoint, candidates: tuple[Candidate, ...] | None = None) -> Proposal:
    """Return the architecture to build for ``checkpoint``, sized as its weights say.

    ``candidates`` are those that :func:`recognised` returns, where they are known already.

    Raises:
        InvalidCheckpoint: no known architecture fits, or the weights contradict what ``spec`` asks for.
    """
    notes: tuple[str, ...] = ()
    if spec.library == "auto":
        found = recognised(checkpoint) if candidates is None else candidates
        spec, notes = _choose(spec, found, checkpoint.file_name)
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
    if candidates and candidates[0].without_head:
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
    ties = [item.title for item in candidates[1:] if item.score == best.score]
    but = "" if best.exact else " but for the name of the classifier"
    note = f"Recognised as {best.title}: every name and shape fits{but}."
    if best.order:
        note = BY_ORDER_NOTE.format(title=best.title)
    if ties:
        same = "the same order and shapes" if best.order else "the same names and shapes"
        has = "has" if len(ties) == 1 else "have"
        note += (
            f" {', '.join(ties[:3])}{' and others' if len(ties) > 3 else ''} {has} {same}, "
            "so check that the baseline is as good as you expect."
        )
    return dataclasses.replace(spec, library=best.library, name=best.name), (note,)  # type: ignore[arg-type]


def _sized(spec: ModelSpec, read: BuiltWith[int | None] | None, *, own_size: int | None, file_name: str) -> ModelSpec:
    """Fill in what the weights tell, and refuse what they contradict."""
    changes: dict[str, int] = {}
    for what in _UNITS if read is not None else ():
        found, wanted = getattr(read, what), getattr(spec, what)
        if found is None or (what == "img_size" and found == own_size and wanted is None):
            continue
        if wanted not in (None, found):
            raise InvalidCheckpoint(
                f"{file_name} was made for {found} {_UNITS[what]}, got {what} {wanted}. Leave it empty to take {found}."
            )
        changes[what] = found
    return dataclasses.replace(spec, **changes)  # type: ignore[arg-type]
