"""Values on their quantization grid, with how much each part of it matters to the model's output."""

from senseapp.sensitivity.histograms.folding import fold_following_norm
from senseapp.sensitivity.histograms.grid_bins import SUB_BINS, GridBins, PlacedGrid
from senseapp.sensitivity.histograms.measure import histogram_of, quantization_histogram

__all__ = [
    "SUB_BINS",
    "GridBins",
    "PlacedGrid",
    "fold_following_norm",
    "histogram_of",
    "quantization_histogram",
]
