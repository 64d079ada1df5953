"""Win accuracy back without training: the repair that fits the network."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from senseapp.spec import CompressionConfig, QuantizationConfig
from senseapp.validation.apply import AppliedModel
from senseapp.validation.batch_norm import batch_norms, reestimate_batch_norm
from senseapp.validation.output_correction import correct_outputs

__all__ = ["repair"]

_LEAST_IMAGES = 2


def repair(
    applied: AppliedModel, dense: nn.Module, batches: Sequence[Tensor], *, config: CompressionConfig
) -> tuple[str, ...]:
    """Repair ``applied`` in place on unlabelled calibration images.

    BatchNorm statistics are estimated again; a network without BatchNorm gets the outputs of its compressed layers
    corrected per channel.

    Args:
        applied: the compressed model.
        dense: the model before.
        batches: (N, C, H, W) on the device of both, of one size.
        config: how it was quantized, if it was; one scale per tensor leaves no room for scales per channel.

    Returns:
        Sentences on what was done, or why nothing could be.
    """
    if not batches or len(batches[0]) < _LEAST_IMAGES:
        return ("Nothing was repaired: that needs at least two calibration images.",)
    count = sum(len(batch) for batch in batches)
    with applied.active():
        if batch_norms(applied.model):
            if reestimate_batch_norm(applied.model, batches):
                return (f"BatchNorm statistics were estimated again on {count} unlabelled images.",)
            return ("BatchNorm statistics of the compressed model are not finite, so the old ones were kept.",)
        return _correct(applied, dense, batches, config, count)


def _correct(
    applied: AppliedModel, dense: nn.Module, batches: Sequence[Tensor], config: CompressionConfig, count: int
) -> tuple[str, ...]:
    kinds = {entry.compression for entry in applied.reached}
    if "pruning" in kinds:
        return ("Nothing was repaired: without BatchNorm, outputs of pruned layers have nothing to be compared with.",)
    changed = {member for entry in applied.reached for member in entry.members}
    layers = [layer for layer in applied.after.layers if layer.name in changed]
    per_channel = not (isinstance(config, QuantizationConfig) and config.granularity == "tensor")
    corrected = correct_outputs(applied.model, dense, batches, layers, scale=per_channel)
    skipped = [layer.name for layer in layers if layer.name not in corrected]
    notes = [f"Outputs of {len(corrected)} layers were corrected per channel on {count} unlabelled images."]
    if skipped:
        notes.append(f"{len(skipped)} layers have no bias to correct or are not called (first: {skipped[0]}).")
    return tuple(notes)
