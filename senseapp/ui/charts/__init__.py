"""Charts as pure functions from the frames of :mod:`senseapp.ui.frames` to Altair, one file each."""

from senseapp.ui.charts.amounts import schedule_bars
from senseapp.ui.charts.bars import sensitivity_bars
from senseapp.ui.charts.curves import sensitivity_curves
from senseapp.ui.charts.heatmap import sensitivity_heatmap
from senseapp.ui.charts.level_line import level_line
from senseapp.ui.charts.network import network_bars
from senseapp.ui.charts.quantization_bars import cell_profile_chart, quantization_bars

__all__ = [
    "cell_profile_chart",
    "level_line",
    "network_bars",
    "quantization_bars",
    "schedule_bars",
    "sensitivity_bars",
    "sensitivity_curves",
    "sensitivity_heatmap",
]
