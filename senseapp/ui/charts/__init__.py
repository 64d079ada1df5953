"""Charts as pure functions from the frames of :mod:`senseapp.ui.frames` to Altair, one file each."""

from senseapp.ui.charts.amounts import schedule_bars
from senseapp.ui.charts.bars import sensitivity_bars
from senseapp.ui.charts.curves import sensitivity_curves
from senseapp.ui.charts.heatmap import sensitivity_heatmap

__all__ = ["schedule_bars", "sensitivity_bars", "sensitivity_curves", "sensitivity_heatmap"]
