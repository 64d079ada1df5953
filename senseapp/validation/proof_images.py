"""The images that a schedule is proven on: others than those its curves were measured on, where there are enough."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from senseapp.data import ImageSet, load_images
from senseapp.errors import InvalidSpec
from senseapp.models.loaded import LoadedModel
from senseapp.results import SensitivityResult
from senseapp.sensitivity.split import LEAST_HELD_OUT, MOST_HELD_OUT, split
from senseapp.tasks import task_named


@dataclass(frozen=True, slots=True, kw_only=True)
class ProofImages:
    """The images of a run, in two parts.

    Attributes:
        curves: those that the curves were measured on; calibration images are taken from them.
        proof: those to prove a schedule on.
        note: one sentence on which these are.
    """

    curves: ImageSet
    proof: ImageSet
    note: str


def load_proof_images(result: SensitivityResult, model: LoadedModel, data_roots: tuple[Path, ...] = ()) -> ProofImages:
    """Load the images of a run again, and find those that its curves have not seen.

    Raises:
        InvalidDataset: they cannot be read any more.
    """
    wanted = result.spec.sensitivity.num_samples
    if wanted is None:
        images = _load(result, model, data_roots, None)
        curves, proof = split(images, result.spec.sensitivity.seed)
        if len(curves) != result.num_samples:  # the run is older than the split, or the folder has changed
            curves, proof = images, images.subset([])
    else:
        curves = _load(result, model, data_roots, wanted)
        proof = _others(_more(result, model, data_roots, wanted), curves)
    if len(proof) >= LEAST_HELD_OUT:
        return ProofImages(curves=curves, proof=proof, note=f"Measured on {len(proof)} images that no curve has seen.")
    note = (
        f"Measured on the {len(curves)} images that the curves were measured on, since fewer than {LEAST_HELD_OUT} "
        "others are left: expect slightly more damage on new images."
    )
    return ProofImages(curves=curves, proof=curves, note=note)


def _load(
    result: SensitivityResult, model: LoadedModel, data_roots: tuple[Path, ...], count: int | None, *, seed: int = 0
) -> ImageSet:
    return load_images(
        result.spec.data,
        model.preprocessing,
        num_classes=model.num_classes,
        task=task_named(result.spec.model.task),
        num_samples=count,
        seed=result.spec.sensitivity.seed + seed,
        data_roots=data_roots,
        class_names=model.class_names,
        with_labels=not model.fresh_head,
    )


def _more(result: SensitivityResult, model: LoadedModel, data_roots: tuple[Path, ...], drawn: int) -> ImageSet:
    """Return the ``drawn`` images and more: a longer draw with one seed begins with the shorter one."""
    if result.spec.data.kind == "random":
        return _load(result, model, data_roots, max(drawn, LEAST_HELD_OUT), seed=1)
    try:
        return _load(result, model, data_roots, drawn + MOST_HELD_OUT)
    except InvalidSpec:  # there are fewer than that
        return _load(result, model, data_roots, None)


def _others(images: ImageSet, curves: ImageSet) -> ImageSet:
    if images.indicative:
        return images
    seen = set(curves.names)
    return images.subset([index for index, name in enumerate(images.names) if name not in seen])
