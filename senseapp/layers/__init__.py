"""A network's compressible layers: which there are, in what order they run, and what they cost."""

from senseapp.layers.batch_axes import CallAxes, NotPerImage, batch_axes
from senseapp.layers.compressible import channel_axis_of, compressible_weights
from senseapp.layers.profile import profile_model, profile_of_trace, watched_pass
from senseapp.layers.select import select_layers
from senseapp.layers.trace import Call, CallTrace, map_tensors, tensors_in, trace_calls, wrapped_forwards
from senseapp.layers.zeros import acting_zero_share

__all__ = [
    "Call",
    "CallAxes",
    "CallTrace",
    "NotPerImage",
    "acting_zero_share",
    "batch_axes",
    "channel_axis_of",
    "compressible_weights",
    "map_tensors",
    "profile_model",
    "profile_of_trace",
    "select_layers",
    "tensors_in",
    "trace_calls",
    "watched_pass",
    "wrapped_forwards",
]
