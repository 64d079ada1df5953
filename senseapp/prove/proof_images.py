"""The images of a finished run, loaded again: those that its curves were measured on, and others for proofs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from senseapp.data.images import ImageSet
from senseapp.data.load import images_for
from senseapp.measure.plan import split
from senseapp.networks.loaded import LoadedModel
from senseapp.records.inputs import LEAST_HELD_OUT, MOST_HELD_OUT
from senseapp.records.measurement import RunResult
from senseapp.tasks import task_named


@dataclass(frozen=True, slots=True, kw_only=True)
class ProofImages:
    """The images of a run: those that its curves were measured on, and those to prove a schedule on.

    The latter are others, where there are enough; ``note`` says which. Calibration images are taken from the former.
    """

    curves: ImageSet
    proof: ImageSet
    note: str

    @property
    def held_out(self) -> bool:
        """Whether the proof images are others than those of the curves."""
        return self.proof is not self.curves


def load_proof_images(result: RunResult, model: LoadedModel, data_roots: tuple[Path, ...] = ()) -> ProofImages:
    """Load the images of a run again, and find those that its curves have not seen."""
    wanted = result.spec.sensitivity.num_samples
    if wanted is None:
        images = _load(result, model, data_roots, None)
        curves, proof = split(images, result.spec.sensitivity.seed)
        if len(curves) != result.num_samples:  # the run is older than the split, or the folder has changed
            curves, proof = images, images.subset([])
    else:
        curves = _load(result, model, data_roots, wanted)
        if result.spec.data.kind == "random":
            proof = _load(result, model, data_roots, max(wanted, LEAST_HELD_OUT), seed=1)
        else:  # a longer draw with one seed begins with the shorter one
            proof = _others(_load(result, model, data_roots, wanted + MOST_HELD_OUT), curves)
    if len(proof) >= LEAST_HELD_OUT:
        return ProofImages(curves=curves, proof=proof, note=f"Checked on {len(proof)} images not used above.")
    note = (
        f"Measured on the {len(curves)} images that the curves were measured on, since fewer than {LEAST_HELD_OUT} "
        "others are left: expect slightly more damage on new images."
    )
    return ProofImages(curves=curves, proof=curves, note=note)


def _load(
    result: RunResult, model: LoadedModel, data_roots: tuple[Path, ...], count: int | None, *, seed: int = 0
) -> ImageSet:
    return images_for(
        model,
        result.spec.data,
        task=task_named(result.spec.model.task),
        num_samples=count,
        seed=result.spec.sensitivity.seed + seed,
        data_roots=data_roots,
    )


def _others(images: ImageSet, curves: ImageSet) -> ImageSet:
    if images.indicative:
        return images
    seen = set(curves.names)
    return images.subset([index for index, name in enumerate(images.names) if name not in seen])
