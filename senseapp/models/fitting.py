"""Whether a checkpoint's weights fit a network, why not in words, and copying them in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from senseapp.errors import InvalidCheckpoint
from senseapp.models.checkpoint import Checkpoint
from senseapp.models.fingerprint import COMPUTED_SUFFIXES
from senseapp.models.seeded import seeded_weights

_TRAINING_ONLY_PREFIXES = ("AuxLogits.", "aux1.", "aux2.")
_LISTED_AT_MOST = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class WrongShape:
    """One weight whose shape in the checkpoint is not the network's."""

    name: str
    expected: tuple[int, ...]
    found: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchReport:
    """How a checkpoint and a network compare.

    Attributes:
        missing: names that the network has and the checkpoint lacks.
        unexpected: names that the checkpoint has and the network lacks.
        wrong_shape: names that both have, with different shapes.
        ignored: names of the checkpoint that are left out on purpose: heads that serve training only, and
            tables that the network computes.
        cause: one sentence on the likely cause; empty if everything fits.
    """

    missing: tuple[str, ...] = ()
    unexpected: tuple[str, ...] = ()
    wrong_shape: tuple[WrongShape, ...] = ()
    ignored: tuple[str, ...] = ()
    cause: str = ""

    @property
    def fits(self) -> bool:
        """Whether every weight of the network is in the checkpoint, in its shape, and nothing else."""
        return not (self.missing or self.unexpected or self.wrong_shape)


def match_state_dict(module: nn.Module, tensors: Mapping[str, Tensor], *, fresh_head: str = "") -> MatchReport:
    """Compare ``tensors`` with the state dict of ``module`` and say why they do not fit, if they do not.

    The weights of the layer ``fresh_head`` may be missing.
    """
    expected = module.state_dict()
    missing = tuple(
        name
        for name in expected
        if name not in tensors
        and not name.endswith(COMPUTED_SUFFIXES)
        and not (fresh_head and name.rpartition(".")[0] == fresh_head)
    )
    surplus = [name for name in tensors if name not in expected]
    ignored = tuple(name for name in surplus if _is_ignored(name))
    unexpected = tuple(name for name in surplus if not _is_ignored(name))
    wrong = tuple(
        WrongShape(name=name, expected=tuple(tensor.shape), found=tuple(tensors[name].shape))
        for name, tensor in expected.items()
        if name in tensors and tensors[name].shape != tensor.shape and not name.endswith(COMPUTED_SUFFIXES)
    )
    return MatchReport(
        missing=missing,
        unexpected=unexpected,
        wrong_shape=wrong,
        ignored=ignored,
        cause=_likely_cause(list(expected), missing, unexpected, wrong),
    )


def _is_ignored(name: str) -> bool:
    return name.endswith(COMPUTED_SUFFIXES) or name.startswith(_TRAINING_ONLY_PREFIXES)


def _likely_cause(
    names: list[str], missing: tuple[str, ...], unexpected: tuple[str, ...], wrong: tuple[WrongShape, ...]
) -> str:
    """Return the first explanation that accounts for every difference."""
    if not (missing or unexpected or wrong):
        return ""
    head = names[-1].rpartition(".")[0] + "."  # the last layer that has weights
    if len(missing) > len(names) // 2:
        return "The checkpoint was made for another architecture: most names differ."
    if wrong and not (missing or unexpected):
        return _cause_of_shapes(names, head, wrong)
    if all(name.startswith(head) for name in missing) and not wrong:
        if not unexpected:
            return "The checkpoint has no classifier: it holds the features only."
        if missing:
            return f"The checkpoint has another classifier in place of {head.rstrip('.')}."
        return "The checkpoint holds more than this architecture: a larger variant, or a second network beside it."
    return "The checkpoint was made for a variant of this architecture, or for another version of its library."


def _cause_of_shapes(names: list[str], head: str, wrong: tuple[WrongShape, ...]) -> str:
    if all(item.name.startswith(head) for item in wrong):
        return (
            f"The checkpoint has {wrong[0].found[0] if wrong[0].found else 0} classes, "
            f"the network was built with {wrong[0].expected[0] if wrong[0].expected else 0}."
        )
    first = names[0].rpartition(".")[0]
    if all(item.name.rpartition(".")[0] == first for item in wrong):
        return "The checkpoint was made for images with another number of channels."
    if all("pos" in item.name or "bias_table" in item.name or "rel_" in item.name for item in wrong):
        return "The checkpoint was made for another image size."
    return "The checkpoint was made for a wider, narrower or otherwise different variant of this architecture."


def load_tensors(module: nn.Module, checkpoint: Checkpoint, *, title: str, fresh_head: str = "") -> tuple[str, ...]:
    """Copy the checkpoint's weights into ``module``, as float32; return the notes a person should read.

    Args:
        module: is changed.
        checkpoint: where the weights come from.
        title: of the architecture.
        fresh_head: name of a classifier that the checkpoint lacks, and that starts from a fixed seed.

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
        _start_afresh(module.get_submodule(fresh_head))
    ignored = [name for name in report.ignored if name.startswith(_TRAINING_ONLY_PREFIXES)]
    return (f"Left out {len(ignored)} weights of heads that serve training only.",) if ignored else ()


def _start_afresh(head: nn.Module) -> None:
    with seeded_weights(), torch.no_grad():
        for name, parameter in head.named_parameters():
            nn.init.zeros_(parameter) if name == "bias" else nn.init.xavier_uniform_(parameter)


def _mismatch_sentence(report: MatchReport, file_name: str, title: str) -> str:
    parts = []
    if report.missing:
        parts.append(f"{len(report.missing)} missing ({_some(report.missing)})")
    if report.unexpected:
        parts.append(f"{len(report.unexpected)} unexpected ({_some(report.unexpected)})")
    if report.wrong_shape:
        shapes = tuple(f"{item.name} {item.found} for {item.expected}" for item in report.wrong_shape)
        parts.append(f"{len(report.wrong_shape)} of another shape ({_some(shapes)})")
    return (
        f"{file_name} does not fit {title}: {'; '.join(parts)}. {report.cause} "
        "Choose the architecture auto to have it recognised, or the checkpoint that belongs to this one."
    )


def _some(names: tuple[str, ...]) -> str:
    return ", ".join(names[:_LISTED_AT_MOST]) + (", …" if len(names) > _LISTED_AT_MOST else "")
