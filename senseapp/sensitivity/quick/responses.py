"""Which way of estimating serves a compression: running layers again, or leaving channels out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from torch import nn

from senseapp.layers import CallTrace
from senseapp.sensitivity.quick.channel_responses import ChannelResponses
from senseapp.sensitivity.quick.protocol import Responses
from senseapp.sensitivity.quick.weight_responses import WeightResponses
from senseapp.transforms import ChannelCompressor, Compressor, WeightCompressor


def responses_of(
    compressor: Compressor,
    model: nn.Module,
    trace: CallTrace,
    norms: Mapping[str, nn.BatchNorm2d],
) -> Responses:
    """Return the way to estimate what ``compressor`` does.

    Args:
        compressor: of ``model``.
        model: the network.
        trace: shows its calls on one image.
        norms: by layer, what is folded into it whenever calls are recorded.
    """
    if isinstance(compressor, ChannelCompressor):
        return ChannelResponses(compressor, model, trace)
    return WeightResponses(cast(WeightCompressor, compressor), model, trace, norms)
