"""What a weights file holds and which architectures it may belong to, told before anything is measured."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from senseapp.core.errors import InvalidCheckpoint
from senseapp.records.spec import ModelSpec
from senseapp.runs.session import load_engine

if TYPE_CHECKING:
    from senseapp.models.fitting import MatchReport
    from senseapp.models.recognise import Candidate


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointReport:
    """What was found in a checkpoint.

    Attributes:
        spec: the checkpoint, as a model whose architecture is to be recognised.
        candidates: architectures that it may belong to, the likeliest first; none where nothing is alike.
        wrapping: keys and prefixes that were taken off, from the outside in.
        has_ema: whether the file holds averaged (EMA) weights beside the plain ones.
        num_tensors: weights by name.
        notes: sentences a person should read.
        verdict: in one sentence, which architecture fits exactly, or that none does.
    """

    spec: ModelSpec
    candidates: tuple[Candidate, ...]
    wrapping: tuple[str, ...]
    has_ema: bool
    num_tensors: int
    notes: tuple[str, ...]
    verdict: str

    def model(self, candidate: Candidate) -> ModelSpec:
        """Return how the checkpoint is loaded as that architecture."""
        return replace(self.spec, library=candidate.library, name=candidate.name)  # type: ignore[arg-type]

    @property
    def proposal(self) -> ModelSpec | None:
        """The architecture to confirm; None where none fits."""
        return self.model(self.candidates[0]) if self.candidates and self.candidates[0].fits else None

    @property
    def look_alikes(self) -> tuple[Candidate, ...]:
        """The likeliest architecture and those that fit equally well; none where none fits."""
        if self.proposal is None:
            return ()
        return tuple(item for item in self.candidates if item.fits and item.score == self.candidates[0].score)


def identify_checkpoint(path: str, *, use_ema: bool = False) -> CheckpointReport:
    """Read a checkpoint and rank the architectures that its names and shapes fit; may take seconds."""
    load_engine()
    from senseapp.models.checkpoint import read_checkpoint  # torch loads on first use, not when the app starts
    from senseapp.models.fitting import propose, recognised

    checkpoint = read_checkpoint(path, use_ema=use_ema)
    spec = ModelSpec(library="auto", checkpoint=path, use_ema=use_ema)
    try:
        verdict = " ".join(propose(spec, checkpoint).notes)
    except InvalidCheckpoint as error:
        verdict = str(error)
    return CheckpointReport(
        spec=spec,
        candidates=recognised(checkpoint),
        wrapping=checkpoint.wrapping,
        has_ema=checkpoint.has_ema,
        num_tensors=len(checkpoint.tensors),
        notes=checkpoint.notes,
        verdict=verdict,
    )


def compare_checkpoint(model: ModelSpec) -> MatchReport:
    """Build the architecture of ``model`` and compare its checkpoint with it, name by name; may take seconds."""
    load_engine()
    from senseapp.models.checkpoint import read_checkpoint  # torch loads on first use, not when the app starts
    from senseapp.models.fitting import match_state_dict, propose
    from senseapp.models.load import build_network
    from senseapp.models.loaded import skip_weight_init

    checkpoint = read_checkpoint(model.checkpoint, use_ema=model.use_ema)
    proposal = propose(model, checkpoint)
    with skip_weight_init():
        module = build_network(proposal.spec).module
    return match_state_dict(module, proposal.fitted(module).tensors, fresh_head=proposal.fresh_head)
