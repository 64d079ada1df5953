"""Win accuracy back without training: the repair that fits the network."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from senseapp.compressions import CompressionConfig
from senseapp.schedules.apply import AppliedModel
from senseapp.schedules.matching import Matching, Reference

_LEAST_IMAGES = 2
_TOO_FEW = "Nothing was repaired: that needs at least two calibration images."
_NOT_FINITE = "Nothing was repaired: on the calibration images, the compressed model's activations are not finite."


def repair(
    applied: AppliedModel, dense: nn.Module, batches: Sequence[Tensor], *, config: CompressionConfig
) -> tuple[str, ...]:
    """Repair ``applied`` in place on unlabelled calibration images.

    The output of every BatchNorm gets the mean and the spread, per channel, that it has in the model before; so does
    the output of each compressed layer that has a bias. A model that nothing was done to stays as it is.

    Args:
        applied: the compressed model.
        dense: the model before.
        batches: (N, C, H, W) on the device of both.
        config: how it was compressed; one scale per tensor leaves no room for scales per channel.

    Returns:
        Sentences on what was done, or why nothing could be.
    """
    count = sum(len(batch) for batch in batches)
    if count < _LEAST_IMAGES:
        return (_TOO_FEW,)
    matching = matching_of(applied, Reference(dense, batches), scale=config.scales_per_channel)
    with applied.active():
        return sentences_on(matching, fitted=matching.fit(), count=count)


def matching_of(applied: AppliedModel, reference: Reference, *, scale: bool) -> Matching:
    """Return what matches the norms and the compressed layers of ``applied`` to ``reference``.

    Args:
        applied: the compressed model.
        reference: what the model before does.
        scale: whether each output channel of a layer may have a scale of its own.
    """
    members = {member for entry in applied.reached for member in entry.members}
    return Matching(applied.model, reference, layers=members, kept=applied.kept_channels, scale=scale)


def sentences_on(matching: Matching, *, fitted: bool, count: int) -> tuple[str, ...]:
    """Return sentences on what ``matching`` did with ``count`` images."""
    if not fitted:
        return (_NOT_FINITE,)
    done = []
    if matching.norms:
        done.append(f"the statistics of {len(matching.norms)} BatchNorms")
    if matching.layers:
        layers = "1 compressed layer" if len(matching.layers) == 1 else f"{len(matching.layers)} compressed layers"
        done.append(f"the outputs of {layers}")
    if not done:
        return ("Nothing could be repaired: no BatchNorm runs, and no compressed layer has a bias.",)
    notes = [
        f"Repair matched {' and '.join(done)} to the uncompressed network's on the same {count} unlabelled images."
    ]
    if matching.skipped:
        notes.append(
            f"{len(matching.skipped)} BatchNorms were left as they are, since which of their channels went is not "
            f"known (first: {matching.skipped[0]})."
        )
    return tuple(notes)
