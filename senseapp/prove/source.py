"""What a file for a runtime is made from: a float network with the weights that a proof measured."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import safetensors.torch

from senseapp.core.files import storage_errors
from senseapp.core.steps import LEFT_OUT
from senseapp.descriptions import Effect, get
from senseapp.metrics import MetricChange
from senseapp.prove.evaluator import ScheduleEvaluator
from senseapp.prove.prove import Proof
from senseapp.records.deployment import ONNX
from senseapp.records.schedule import Delivered, Schedule, ValidationResult


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A network, and how its weights came about.

    Attributes:
        network: float ONNX.
        schedule: that was carried out in it; None for the original weights.
        reconstruction: how its weights make up for what the schedule took; empty without a schedule.
        simulated: what the proof measured of these weights in torch; empty without a schedule.
        bits: by layer, of each weight on a grid; empty where the schedule says nothing of bits.
        notes: sentences a person should read.
    """

    network: bytes
    schedule: Schedule | None = None
    reconstruction: Delivered = ""
    simulated: tuple[MetricChange, ...] = ()
    bits: Mapping[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def original_source(evaluator: ScheduleEvaluator) -> Source:
    """Return the uncompressed network of a run."""
    return Source(network=evaluator.original_network)


def proven_source(evaluator: ScheduleEvaluator, proven: Proof) -> Source:
    """Return a network that was just proven."""
    evaluator.progress("Writing the proven network as ONNX")
    return _source(evaluator.network_of(proven.applied.model), proven.result)


def stored_source(evaluator: ScheduleEvaluator, proof: ValidationResult, weights: Path) -> Source:
    """Return the network of an earlier proof, whose weights lie at ``weights``, as a plain state dict.

    Where channels were removed, the network lies beside them as ONNX.

    Raises:
        StorageFailed: the files are gone.
    """
    whole = weights.with_suffix(ONNX.suffix)
    if whole.is_file():
        with storage_errors(whole.name):
            return _source(whole.read_bytes(), proof)
    model = copy.deepcopy(evaluator.dense.model)
    with storage_errors(weights.name):
        state = safetensors.torch.load(weights.read_bytes())
    model.load_state_dict(state)
    evaluator.progress("Writing the proven network as ONNX")
    return _source(evaluator.network_of(model), proof)


def _source(network: bytes, proof: ValidationResult) -> Source:
    return Source(
        network=network,
        schedule=proof.schedule,
        reconstruction=proof.reconstruction,
        simulated=proof.kept_changes,
        bits=bits_of(proof.schedule),
        notes=(
            *((proof.delivered_reason,) if proof.delivered_reason else ()),
            *(note for note in proof.notes if note.startswith(LEFT_OUT)),
        ),
    )


def bits_of(schedule: Schedule) -> dict[str, float]:
    """Return the bits of each weight, by layer, that ``schedule`` puts on a grid."""
    return {
        member: entry.level
        for entry in schedule.entries
        if entry.compression != "none" and get(entry.compression).effect is Effect.BITS
        for member in entry.members
    }
