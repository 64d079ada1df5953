"""Which layers a run of pruning takes together, before it starts."""

from __future__ import annotations

from senseapp.records.spec import RunSpec
from senseapp.runs.session import load_engine

_EXAMPLE_IMAGES = 2


def find_pruning_groups(spec: RunSpec) -> tuple[tuple[str, ...], ...]:
    """Load the model of ``spec`` and return the members of each of its groups; none for other compressions."""
    settings = spec.sensitivity
    if not settings.compression.description.removes_channels:
        return ()
    load_engine()
    import torch

    from senseapp.compressions.base import CompressionRequest, build_compressor
    from senseapp.layers.profile import profile_model, select_layers
    from senseapp.models.load import load_model

    loaded = load_model(spec.model)
    images = torch.randn(_EXAMPLE_IMAGES, *loaded.preprocessing.input_shape)
    profile = profile_model(loaded.module, images)
    layers = select_layers(profile, settings.layers, settings.layer_types)
    request = CompressionRequest(model=loaded.module, layers=layers, calibration=(images,), seed=settings.seed)
    return tuple(target.members for target in build_compressor(settings.compression, request).targets)
