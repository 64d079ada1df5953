"""Models and checkpoints before a run: profiles, pruning groups, matching architectures, equality of models."""

import filecmp
import threading
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

from senseapp.core.codec import loads
from senseapp.core.errors import InvalidCheckpoint, InvalidSchedule
from senseapp.core.files import SITE, files_at
from senseapp.networks.checkpoints.recognise import ArchitectureMatch
from senseapp.records.inputs import MatchReport, OnnxReport
from senseapp.records.profile import ModelProfile, select_layers
from senseapp.records.spec import ModelSpec, RunSpec
from senseapp.server.process.requester import ANYBODY, Requester
from senseapp.tasks import task_named

_Key: TypeAlias = tuple[ModelSpec, float, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCard:
    """A model's layers and their cost, and the names of its outputs (empty where unknown)."""

    profile: ModelProfile
    class_names: tuple[str, ...] = ()


def load_card(model: ModelSpec) -> ModelCard:
    """Load the network, profile it with one forward pass, and release it; takes up to seconds."""
    import torch  # here and below: torch loads on first use, not when the app starts

    from senseapp.networks.network import images_per_pass
    from senseapp.networks.profile import profile_model
    from senseapp.networks.sources.load import load_model

    loaded = load_model(model)
    profile = profile_model(
        loaded.module,
        torch.zeros(images_per_pass(loaded.module) or 1, *loaded.preprocessing.input_shape),
        task=task_named(model.task),
        title=loaded.title,
        pretrained=loaded.pretrained,
        notes=loaded.notes,
    )
    return ModelCard(profile=profile, class_names=loaded.class_names)


SHIPPED_CARD = SITE / "assets" / "demo_card.json"


def shipped_card() -> ModelCard:
    """Return the precomputed card of the demo network, so that the first page does not wait."""
    return loads(SHIPPED_CARD.read_bytes(), ModelCard)


def find_pruning_groups(spec: RunSpec) -> tuple[tuple[str, ...], ...]:
    """Load the model of ``spec``, of a run of pruning, and return the members of each of its groups."""
    import torch

    from senseapp.compressions.base import CompressionRequest, build_compressor
    from senseapp.networks.network import images_per_pass
    from senseapp.networks.profile import profile_model
    from senseapp.networks.sources.load import load_model
    from senseapp.networks.trace import EXAMPLE_IMAGES

    loaded = load_model(spec.model)
    images = torch.randn(images_per_pass(loaded.module) or EXAMPLE_IMAGES, *loaded.preprocessing.input_shape)
    profile, settings = profile_model(loaded.module, images), spec.sensitivity
    layers = select_layers(profile, settings.layers, settings.layer_types)
    request = CompressionRequest(model=loaded.module, layers=layers, calibration=(images,), seed=settings.seed)
    return tuple(target.members for target in build_compressor(settings.compression, request).targets)


class ModelCards:
    """Cards by model; a checkpoint that changed on disk is read again.

    ``load`` profiles an unknown model for a requester.
    """

    def __init__(self, load: Callable[[ModelSpec, Requester], ModelCard] = lambda model, _: load_card(model)) -> None:
        self._load = load
        self._known: dict[_Key, ModelCard] = {}
        self._loading: defaultdict[_Key, threading.Lock] = defaultdict(threading.Lock)

    def knows(self, model: ModelSpec) -> bool:
        """Return whether :meth:`card` returns without loading."""
        return model == ModelSpec() or _key(model) in self._known

    def card(self, model: ModelSpec, requester: Requester = ANYBODY) -> ModelCard:
        """Return the card of one network; the first call loads it and blocks, others can be loaded meanwhile."""
        key = _key(model)
        with self._loading[key]:
            if key not in self._known:
                self._known[key] = self._load(model, requester)
            card = self._known[key]
        while len(self._known) > 64:
            oldest = next(iter(self._known))
            self._known.pop(oldest, None)
            self._loading.pop(oldest, None)
        return card


def _key(model: ModelSpec) -> _Key:
    found = [file.stat() for file in files_at(Path(model.checkpoint))] if model.checkpoint else []
    return model, max((each.st_mtime for each in found), default=0.0), sum(each.st_size for each in found)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointReport:
    """Content of a checkpoint.

    Attributes:
        spec: the checkpoint, as a model whose architecture is to be recognised.
        candidates: architectures that it may belong to, the likeliest first; empty if none is similar.
        network: prefix of the network that this report is about.
        networks: prefixes of all networks in the file, in its order.
        num_tensors: number of named weights.
        notes: sentences for the user.
        verdict: one sentence on the architecture that fits exactly, or that none does.
    """

    spec: ModelSpec
    candidates: tuple[ArchitectureMatch, ...]
    network: str
    networks: tuple[str, ...]
    num_tensors: int
    notes: tuple[str, ...]
    verdict: str

    def model(self, candidate: ArchitectureMatch) -> ModelSpec:
        """Return the spec that loads the checkpoint as that architecture."""
        return replace(self.spec, library=candidate.library, name=candidate.name)

    @property
    def proposal(self) -> ModelSpec | None:
        """The architecture to confirm; None if none fits."""
        return self.model(self.candidates[0]) if self.candidates and self.candidates[0].fits else None

    @property
    def look_alikes(self) -> tuple[ArchitectureMatch, ...]:
        """The likeliest architecture and those that fit equally well; empty if none fits."""
        if self.proposal is None:
            return ()
        return tuple(item for item in self.candidates if item.fits and item.score == self.candidates[0].score)


def identify_checkpoint(path: str, *, network: str = "") -> CheckpointReport:
    """Read a checkpoint and rank the architectures that one of its networks fits, the first by default.

    This may take seconds.
    """
    from senseapp.networks.checkpoints.checkpoint import read_checkpoint
    from senseapp.networks.checkpoints.fitting import networks_in, propose
    from senseapp.networks.checkpoints.stored_networks import choose_network

    checkpoint = read_checkpoint(path)
    spec = ModelSpec(library="auto", checkpoint=path, network=network)
    networks = networks_in(spec, checkpoint)
    chosen = choose_network(networks, network, file_name=checkpoint.file_name)
    notes = list(checkpoint.notes)
    try:
        verdict, *notes = propose(spec, checkpoint, networks).notes
    except InvalidCheckpoint as error:
        verdict = str(error)
    return CheckpointReport(
        spec=spec,
        candidates=chosen.candidates,
        network=chosen.title if chosen.prefix else "",
        networks=tuple(item.title for item in networks),
        num_tensors=len(chosen.tensors),
        notes=tuple(notes),
        verdict=verdict,
    )


def examine_onnx_file(model: ModelSpec) -> OnnxReport:
    """Read the ONNX file of ``model`` and run it a few times; may take seconds."""
    from senseapp.networks.onnx.source import examine_onnx

    return examine_onnx(model)


def compare_checkpoint(model: ModelSpec) -> MatchReport:
    """Build the architecture of ``model`` and compare its checkpoint with it, name by name; may take seconds."""
    from senseapp.networks.checkpoints.checkpoint import read_checkpoint
    from senseapp.networks.checkpoints.fitting import propose
    from senseapp.networks.checkpoints.misfits import match_state_dict
    from senseapp.networks.loaded import skip_weight_init
    from senseapp.networks.sources.load import build_network

    proposal = propose(model, read_checkpoint(model.checkpoint))
    with skip_weight_init():
        module = build_network(proposal.spec, proposal.arguments).module
    return match_state_dict(module, proposal.tensors, fresh_head=proposal.fresh_head)


def same_model(first: ModelSpec, second: ModelSpec) -> bool:
    """Return whether both are one network: equal settings, and checkpoints of equal content.

    A checkpoint that is not on this machine equals only one with an equal path.
    """
    if first == second:
        return True
    paths = Path(first.checkpoint), Path(second.checkpoint)
    if replace(first, checkpoint="") != replace(second, checkpoint="") or not all(map(Path.is_absolute, paths)):
        return False  # also for a run from another server, which has only the file's name
    try:
        files, others = map(files_at, paths)
        pairs = list(zip(files, others, strict=False)) if len(files) == len(others) else []
        return bool(pairs) and all(filecmp.cmp(*pair, shallow=False) for pair in pairs)  # remembers what it compared
    except OSError:
        return False


def require_same_model(first: ModelSpec, second: ModelSpec) -> None:
    """Raise InvalidSchedule unless two runs are of one network; for imported figures only the layers are compared."""
    if first.is_runnable and second.is_runnable and not same_model(first, second):
        names = " and ".join(Path(model.checkpoint).name or model.title for model in (first, second))
        raise InvalidSchedule(
            f"The two runs are of different models, or their checkpoints are no longer there to be compared ({names}). "
            "Choose two runs of one model."
        )
