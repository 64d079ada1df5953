"""The Heat map tab: all layers at all levels."""

from __future__ import annotations

from senseapp.ui import format as fmt
from senseapp.ui.charts import sensitivity_heatmap
from senseapp.ui.components.figure import caveat_of, figure, rows_height
from senseapp.ui.components.run_view import RunView
from senseapp.ui.state import session

__all__ = ["heatmap_tab"]


def heatmap_tab(view: RunView) -> None:
    """Show where in the network, and from which level on, compression hurts."""
    order = list(dict.fromkeys(view.frame["row"]))
    figure(
        "Where in the network, and from which level on, does compression hurt?",
        sensitivity_heatmap(view.frame, view.metric, order=order, level_texts=view.level_texts, picked=view.picked),
        alt_text=f"{view.metric.label} of {fmt.plural(len(order), 'layer')} at {', '.join(view.level_texts)}",
        key=f"heatmap.{view.run_id}.{session().pick_round}",
        run_id=view.run_id,
        caveat=caveat_of(view.result),
        reading="Rows are layers from input to output. A ring marks cells that cannot be told from zero; click a cell "
        "to pick its layer in every view.",
        frame_height=rows_height(len(order)),
    )
