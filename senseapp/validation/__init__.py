"""Prove schedules: apply them, repair without training, measure on images no curve has seen, write the model."""

from senseapp.validation.apply import AppliedModel, apply_schedule, configs_for
from senseapp.validation.bench import TestBench
from senseapp.validation.proof_images import ProofImages
from senseapp.validation.repair import repair
from senseapp.validation.strongest import strongest_schedule
from senseapp.validation.true_size import couplings_of, schedule_of_true_size
from senseapp.validation.validate import Proven, prove, validate
from senseapp.validation.write import with_file_sizes, write_compressed

__all__ = [
    "AppliedModel",
    "ProofImages",
    "Proven",
    "TestBench",
    "apply_schedule",
    "configs_for",
    "couplings_of",
    "prove",
    "repair",
    "schedule_of_true_size",
    "strongest_schedule",
    "validate",
    "with_file_sizes",
    "write_compressed",
]
