"""What a weights file holds and which architectures it may belong to, told before anything is measured."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from senseapp.core.errors import InvalidCheckpoint
from senseapp.records.spec import ModelSpec
from senseapp.runs.session import load_engine

if TYPE_CHECKING:
    from senseapp.models.fitting import MatchReport
    from senseapp.models.recognise import Candidate


_ROWS = 200
MismatchKind: TypeAlias = Literal["missing", "unexpected", "wrong shape"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointCandidate:
    """One architecture that a checkpoint may belong to.

    Attributes:
        model: to load the checkpoint as this architecture.
        score: 1 for a perfect fit; below that roughly the share of names and shapes in common.
        exact: whether every name and shape fits.
        fits: whether all weights are there, as far as names, or else order and shapes, tell.
        by_order: whether only order and shapes fit, under other names: a guess.
        without_head: whether all but the classifier is there.
        num_classes, in_chans, img_size: read off the shapes; None where these do not tell.
    """

    model: ModelSpec
    score: float
    exact: bool
    fits: bool
    by_order: bool
    without_head: bool
    num_classes: int | None
    in_chans: int | None
    img_size: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointReport:
    """What was found in a checkpoint.

    Attributes:
        candidates: the likeliest first; none where nothing is alike.
        wrapping: keys and prefixes that were taken off, from the outside in.
        has_ema: whether the file holds averaged (EMA) weights beside the plain ones.
        num_tensors: weights by name.
        notes: sentences on the file that a person should read.
        verdict: in one sentence, which architecture fits exactly, or that none does.
    """

    candidates: tuple[CheckpointCandidate, ...]
    wrapping: tuple[str, ...]
    has_ema: bool
    num_tensors: int
    notes: tuple[str, ...]
    verdict: str

    @property
    def proposal(self) -> ModelSpec | None:
        """The architecture to confirm; None where none fits."""
        return self.candidates[0].model if self.candidates and self.candidates[0].fits else None

    @property
    def look_alikes(self) -> tuple[CheckpointCandidate, ...]:
        """The likeliest architecture and those that fit equally well; none where none fits."""
        if self.proposal is None:
            return ()
        return tuple(item for item in self.candidates if item.fits and item.score == self.candidates[0].score)


@dataclass(frozen=True, slots=True, kw_only=True)
class MismatchRow:
    """One weight that does not fit; a side that lacks it has an empty text."""

    kind: MismatchKind
    name: str
    expected: str
    found: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointFit:
    """How a checkpoint and one architecture compare.

    Attributes:
        title: of the architecture.
        rows: the first differences, missing ones first.
        num_differences: how many there are in all.
        cause: the likely cause in one sentence; empty if everything fits.
    """

    title: str
    rows: tuple[MismatchRow, ...]
    num_differences: int
    cause: str

    @property
    def fits(self) -> bool:
        """Whether every weight fits."""
        return self.num_differences == 0


def identify_checkpoint(path: str, *, use_ema: bool = False) -> CheckpointReport:
    """Read a checkpoint and rank the architectures that its names and shapes fit; may take seconds.

    Raises:
        InvalidCheckpoint: it cannot be read or trusted, or holds no weights.
    """
    load_engine()
    from senseapp.models.checkpoint import read_checkpoint  # torch loads on first use, not when the app starts
    from senseapp.models.fitting import propose, recognised

    checkpoint = read_checkpoint(path, use_ema=use_ema)
    spec = ModelSpec(library="auto", checkpoint=path, use_ema=use_ema)
    try:
        verdict = " ".join(propose(spec, checkpoint).notes)
    except InvalidCheckpoint as error:
        verdict = str(error)
    found = recognised(checkpoint)
    return CheckpointReport(
        candidates=tuple(_candidate(item, spec) for item in found),
        wrapping=checkpoint.wrapping,
        has_ema=checkpoint.has_ema,
        num_tensors=len(checkpoint.tensors),
        notes=checkpoint.notes,
        verdict=verdict,
    )


def _candidate(item: Candidate, spec: ModelSpec) -> CheckpointCandidate:
    model = ModelSpec(
        library=item.library,  # type: ignore[arg-type]
        name=item.name,
        checkpoint=spec.checkpoint,
        use_ema=spec.use_ema,
    )
    return CheckpointCandidate(
        model=model,
        score=item.score,
        exact=item.exact,
        fits=item.fits,
        by_order=bool(item.order),
        without_head=item.head is not None and item.head.missing,
        num_classes=item.num_classes,
        in_chans=item.in_chans,
        img_size=item.img_size,
    )


def compare_checkpoint(model: ModelSpec) -> CheckpointFit:
    """Build the architecture of ``model`` and compare its checkpoint with it, name by name; may take seconds.

    Raises:
        InvalidInput: the checkpoint cannot be read, or the architecture not built for it.
    """
    load_engine()
    from senseapp.models.checkpoint import read_checkpoint  # torch loads on first use, not when the app starts
    from senseapp.models.fitting import match_state_dict, propose
    from senseapp.models.load import build_network
    from senseapp.models.loaded import unset_weights

    checkpoint = read_checkpoint(model.checkpoint, use_ema=model.use_ema)
    proposal = propose(model, checkpoint)
    with unset_weights():
        module = build_network(proposal.spec).module
    weights = proposal.fitted(module)
    report = match_state_dict(module, weights.tensors, fresh_head=proposal.fresh_head)
    expected = {name: tuple(tensor.shape) for name, tensor in module.state_dict().items()}
    rows = tuple(_rows(report, expected, weights.shapes))
    return CheckpointFit(title=proposal.spec.title, rows=rows[:_ROWS], num_differences=len(rows), cause=report.cause)


def _rows(
    report: MatchReport, expected: dict[str, tuple[int, ...]], found: dict[str, tuple[int, ...]]
) -> Iterator[MismatchRow]:
    for name in report.missing:
        yield MismatchRow(kind="missing", name=name, expected=_shape(expected[name]), found="")
    for item in report.wrong_shape:
        shapes = _shape(item.expected), _shape(item.found)
        yield MismatchRow(kind="wrong shape", name=item.name, expected=shapes[0], found=shapes[1])
    for name in report.unexpected:
        yield MismatchRow(kind="unexpected", name=name, expected="", found=_shape(found[name]))


def _shape(sizes: Iterable[int]) -> str:
    return " × ".join(map(str, sizes)) or "one number"
