"""Build the architecture that a checkpoint belongs to and load its weights, or explain why they do not fit."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from senseapp.core.errors import InvalidCheckpoint, InvalidSpec, first_line_of
from senseapp.core.texts import first_names
from senseapp.networks.checkpoints.architectures import COMPUTED_SUFFIXES, architecture_named, is_layer
from senseapp.networks.checkpoints.checkpoint import Checkpoint, number_notes, read_checkpoint
from senseapp.networks.checkpoints.misfits import (
    FLOAT_WEIGHTS,
    match_state_dict,
    mismatch_sentence,
    not_plain_weights,
    why_nothing_fits,
)
from senseapp.networks.checkpoints.model_folder import CONFIG_FILE
from senseapp.networks.checkpoints.recognise import BY_ORDER_NOTE, ArchitectureMatch, named_by_order
from senseapp.networks.checkpoints.stored_networks import StoredNetwork, choose_network, find_networks
from senseapp.networks.loaded import LoadedModel, seeded_weights, skip_weight_init
from senseapp.networks.sources.libraries import build_on_meta, output_width
from senseapp.records.spec import ModelSpec


def load_tensors(
    module: nn.Module, tensors: Mapping[str, Tensor], *, file_name: str, title: str, fresh_head: str = ""
) -> None:
    """Copy the weights ``tensors`` of a file into ``module``, as float32.

    ``fresh_head`` names a classifier that the checkpoint lacks; it is initialised from a fixed seed.

    Raises InvalidCheckpoint if a weight is missing, surplus, of another shape or quantized; the module is unchanged.
    """
    report = match_state_dict(module, tensors, fresh_head=fresh_head)
    if not report.fits:
        raise InvalidCheckpoint(not_plain_weights(file_name, tensors) or mismatch_sentence(report, file_name, title))
    own = module.state_dict()
    floats = (name for name in own if own[name].is_floating_point() and is_layer(tuple(own[name].shape)))
    whole = [name for name in floats if name in tensors and not tensors[name].is_floating_point()]
    if whole:
        raise InvalidCheckpoint(
            f"{len(whole)} weights in {file_name} are whole numbers ({first_names(whole)}): the network was quantized. "
            f"{FLOAT_WEIGHTS}"
        )
    with torch.no_grad():
        for name, tensor in own.items():
            if name in tensors and not name.endswith(COMPUTED_SUFFIXES):
                tensor.copy_(tensors[name])
    if fresh_head:
        with seeded_weights(), torch.no_grad():
            for name, parameter in module.get_submodule(fresh_head).named_parameters():
                nn.init.zeros_(parameter) if name == "bias" else nn.init.xavier_uniform_(parameter)


_FRESH_HEAD_NOTE = (
    "The checkpoint has no classifier, so a random one stands in: accuracy means nothing and labels are not used. Harm "
    "shows how far the output moves."
)
_UNITS = {"num_classes": "classes", "in_chans": "input channels", "img_size": "pixels a side"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """The architecture to build for a checkpoint.

    Attributes:
        spec: the architecture, with the sizes of the weights.
        file_name: of the checkpoint.
        tensors: its weights, under the architecture's names.
        fresh_head: name of the classifier that the checkpoint lacks; empty where it has one.
        arguments: that the architecture is built with, beside the sizes in ``spec``; of a ``config.json``.
        notes: sentences on the choice, and on weights left out.
    """

    spec: ModelSpec
    file_name: str
    tensors: Mapping[str, Tensor]
    fresh_head: str = ""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def load_from_checkpoint(
    spec: ModelSpec, build: Callable[[ModelSpec, Mapping[str, Any]], LoadedModel], report: Callable[[str], None]
) -> LoadedModel:
    """Return the network of ``spec`` with the weights of ``spec.checkpoint``.

    ``build`` builds a spec without a checkpoint, with further arguments of its library; ``report`` receives one
    sentence before each long step.

    Raises:
        InvalidCheckpoint: it cannot be read, belongs to no known architecture, or does not fit the one named.
        InvalidSpec: ``spec`` has published weights and a checkpoint.
    """
    if spec.pretrained:
        raise InvalidSpec("Choose published weights or a checkpoint, not both.")
    report("Reading the checkpoint")
    checkpoint = read_checkpoint(spec.checkpoint)
    if spec.library == "auto":
        report("Recognising the architecture")
    proposal = propose(spec, checkpoint)
    report(f"Building {proposal.spec.title}")
    with skip_weight_init():
        loaded = build(proposal.spec, proposal.arguments)
    named = () if checkpoint.config is None else checkpoint.config.class_names
    if len(named) != loaded.num_classes:
        named = loaded.class_names  # those of the library
    load_tensors(
        loaded.module,
        proposal.tensors,
        file_name=proposal.file_name,
        title=proposal.spec.title,
        fresh_head=proposal.fresh_head,
    )
    return dataclasses.replace(
        loaded,
        pretrained=True,
        class_names=() if proposal.fresh_head else named,
        prepared_as=f"as {CONFIG_FILE} says" if proposal.arguments else loaded.prepared_as,
        fresh_head=bool(proposal.fresh_head),
        notes=(*loaded.notes, *proposal.notes),
    )


def networks_in(spec: ModelSpec, checkpoint: Checkpoint) -> tuple[StoredNetwork, ...]:
    """Return the networks in ``checkpoint``; where ``spec`` names an architecture, those of it."""
    if (described := _described(spec, checkpoint)) is not None:
        return (described,)
    return find_networks(checkpoint, architecture_named(spec.library, spec.name))


def _described(spec: ModelSpec, checkpoint: Checkpoint) -> StoredNetwork | None:
    """Return the network that a ``config.json`` describes; None without one, or where the weights are others."""
    config = checkpoint.config
    if config is None or not config.architecture:
        return None
    if spec.library != "auto" and not _is_of("timm", config.architecture, spec):
        return None
    try:
        module = build_on_meta("timm", config.architecture, **config.arguments)
    except Exception as error:  # any that a constructor has for arguments that it does not expect
        raise InvalidCheckpoint(
            f"timm/{config.architecture} cannot be built as {CONFIG_FILE} in {checkpoint.file_name} says "
            f"({first_line_of(error, most=160)}). Check its model_args, or choose the file of weights alone."
        ) from error
    if not match_state_dict(module, checkpoint.tensors).fits:
        return None
    channels = config.arguments.get("in_chans")
    match = ArchitectureMatch(
        library="timm",
        name=config.architecture,
        score=1.0,
        exact=True,
        num_classes=output_width(module) or None,
        in_chans=channels if isinstance(channels, int) else None,
        img_size=config.side,
    )
    return StoredNetwork(prefix="", tensors=checkpoint.tensors, candidates=(match,), config=config)


def propose(spec: ModelSpec, checkpoint: Checkpoint, networks: Sequence[StoredNetwork] = ()) -> Proposal:
    """Return the architecture to build for ``checkpoint``, sized as its weights say.

    ``networks`` is the result of :func:`networks_in`, if it is known already.

    Raises InvalidCheckpoint if no known architecture fits, or the weights contradict the sizes in ``spec``.
    """
    networks, file_name = networks or networks_in(spec, checkpoint), checkpoint.file_name
    network = choose_network(networks, spec.network, file_name=file_name)
    recognised: tuple[str, ...] = ()
    if spec.library == "auto":
        spec, recognised = _choose(spec, network, checkpoint)
    chosen = next((item for item in network.candidates if _is_of(item.library, item.name, spec)), None)
    tensors, notes, fresh_head = dict(network.tensors), list(recognised), ""
    if chosen is not None:
        if chosen.without_head and spec.num_classes is None:
            raise InvalidCheckpoint(
                f"The weights in {file_name} are those of {spec.title} without its classifier. Bring the whole "
                "checkpoint, or measure with a random classifier of a given number of classes: accuracy then means "
                "nothing, harm shows how far the output moves."
            )
        tensors = {name: tensors[name] for name in tensors if name not in chosen.surplus}
        notes += _choice_notes(chosen, network, is_said=bool(recognised))
        if chosen.head is not None:
            tensors = chosen.head.renamed(tensors)
            fresh_head = chosen.head.own if chosen.without_head else ""
        if chosen.by_order:
            tensors = named_by_order(chosen, tensors, file_name=file_name)
    notes += (*_config_notes(network, checkpoint), *_file_notes(network, networks), *checkpoint.notes)
    return Proposal(
        spec=dataclasses.replace(_sized(spec, chosen, file_name=file_name), checkpoint="", network=""),
        file_name=file_name,
        tensors=tensors,
        fresh_head=fresh_head,
        arguments={} if network.config is None else network.config.arguments,
        notes=(*notes, *number_notes(tensors)),
    )


def _is_of(library: str, name: str, spec: ModelSpec) -> bool:
    """Return whether it is the architecture of ``spec``, ignoring the weights tag in its name."""
    return (library, name) == (spec.library, spec.name.split(".", 1)[0])


def _choice_notes(chosen: ArchitectureMatch, network: StoredNetwork, *, is_said: bool) -> Iterator[str]:
    """Yield how the network differs from the architecture; ``is_said``: it was recognised, and a note says so."""
    if chosen.by_order and not is_said:
        yield BY_ORDER_NOTE.format(title=chosen.title)
    if chosen.without_head:
        yield _FRESH_HEAD_NOTE
    elif chosen.head is not None:
        head = chosen.head
        yield f"The classifier, called {head.found} in the file, was taken as {head.own}: its size is right."
    if chosen.surplus:
        yield f"Left out, as {chosen.title} has no such weights: {first_names(chosen.surplus)}."
        if any(is_layer(network.shapes[name]) for name in chosen.surplus):
            yield (
                "Among them are layers. If the network needs them, its accuracy before compression is lower than "
                "you know it."
            )


def _config_notes(network: StoredNetwork, checkpoint: Checkpoint) -> Iterator[str]:
    """Yield that a ``config.json`` beside the weights was not followed, where it was not."""
    config = checkpoint.config
    if config is None or network.config is not None:
        return
    if config.architecture:
        yield (
            f"{CONFIG_FILE} describes timm/{config.architecture}, and these weights are not those of it: the "
            "architecture, its arguments and the preparation of images in it are not used."
        )
    else:
        yield f"{CONFIG_FILE} was written for {config.written_for}; of it only the names of classes are used."


def _file_notes(network: StoredNetwork, networks: Sequence[StoredNetwork]) -> Iterator[str]:
    """Yield which network was taken, where there are several, and what else is in the file."""
    others = [item.title for item in networks if item is not network]
    if others:
        titles = first_names([item.title for item in networks])
        yield (
            f"The file holds {len(networks)} networks ({titles}): the weights of {network.title} are used. "
            f"Choose another network of the file to measure that (--network {others[0]})."
        )
    beside = [name for name in network.beside if not any(f"{title}.".startswith(f"{name}.") for title in others)]
    if beside:
        yield f"Not part of the network, and left out: {first_names(beside)}."


def look_alikes(spec: ModelSpec) -> tuple[tuple[ModelSpec, ...], tuple[str, ...]]:
    """Return the architectures that the checkpoint of ``spec``, whose library is ``auto``, fits equally well.

    The choice of :func:`propose` comes first; the second value is sentences on how it was recognised.

    Raises InvalidCheckpoint if it cannot be read, or fits no architecture.
    """
    checkpoint = read_checkpoint(spec.checkpoint)
    network = choose_network(networks_in(spec, checkpoint), spec.network, file_name=checkpoint.file_name)
    first, notes = _choose(spec, network, checkpoint)
    alike = (dataclasses.replace(spec, library=item.library, name=item.name) for item in _ties(network))
    return (first, *alike), notes


def _ties(network: StoredNetwork) -> list[ArchitectureMatch]:
    """Return the architectures that fit as well as the first."""
    best, *others = network.candidates
    return [item for item in others if item.fits and item.score == best.score]


def _choose(spec: ModelSpec, network: StoredNetwork, checkpoint: Checkpoint) -> tuple[ModelSpec, tuple[str, ...]]:
    """Return ``spec`` with the architecture of ``network``, and how it was recognised."""
    if not network.fits and not (network.candidates and network.candidates[0].without_head):
        raise InvalidCheckpoint(why_nothing_fits(checkpoint, network))
    best = network.candidates[0]
    chosen = dataclasses.replace(spec, library=best.library, name=best.name)
    if best.without_head:
        return chosen, ()
    if network.config is not None:
        return chosen, (f"{CONFIG_FILE} names {best.title}: every name and shape fits.",)
    but = " but for the name of the classifier" if best.head is not None else ""
    note = f"Recognised as {best.title}: every name and shape fits{but}."
    if ties := [item.title for item in _ties(network)]:
        note = f"Every name and shape fits {best.title}{but}."
    if best.order:
        note = BY_ORDER_NOTE.format(title=best.title)
    if ties:
        note += (
            f" {', '.join(ties[:3])}{' and others' * (len(ties) > 3)} {'fits' if len(ties) == 1 else 'fit'} as well: "
            "the images decide. Where none do, the first is taken, so check that the baseline is as good as you expect."
        )
    return chosen, (note,)


def _sized(spec: ModelSpec, read: ArchitectureMatch | None, *, file_name: str) -> ModelSpec:
    """Return ``spec`` with the sizes of the weights; raises InvalidCheckpoint where they contradict it."""
    architecture = architecture_named(spec.library, spec.name)
    changes: dict[str, int] = {}
    for what, unit in _UNITS.items() if read is not None else ():
        found, wanted = getattr(read, what), getattr(spec, what)
        is_its_own = what == "img_size" and architecture is not None and found == architecture.img_size
        if found is None or (is_its_own and wanted is None):
            continue
        if wanted not in (None, found):
            raise InvalidCheckpoint(
                f"{file_name} was made for {found} {unit}, got {what} {wanted}. Leave it empty to take {found}."
            )
        changes[what] = found
    return dataclasses.replace(spec, **changes)  # type: ignore[arg-type]
