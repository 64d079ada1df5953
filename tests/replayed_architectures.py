"""Measuring a few layers of any architecture by replay and by whole passes."""

from __future__ import annotations

from senseapp.layers import profile_model
from tests.architectures import ARCHITECTURES, NUM_CLASSES, example_input
from tests.plain_loop import assert_equals_plain_loop, labelled, sampled

CONVOLUTIONAL = frozenset({"residual", "dense", "plain"})


def check_replay(name: str) -> None:
    """Compare layers spread over the depth of the architecture called ``name``; it must be replayed, not run whole."""
    architecture = ARCHITECTURES[name]
    model, x = architecture.build(), example_input(architecture, 4)
    profile = profile_model(model, x[:1])
    layers = sampled([layer.name for layer in profile.layers if layer.runs])
    sweep = assert_equals_plain_loop(model, labelled(x, NUM_CLASSES), layers)
    assert sweep.bench.unsafe == ""
