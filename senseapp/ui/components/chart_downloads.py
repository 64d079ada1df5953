"""The download menu of a chart: its picture in two forms, and the numbers behind it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import altair as alt
import pandas as pd
import streamlit as st

from senseapp.ui import format as fmt
from senseapp.ui.charts.files import drawn_rows, picture_png, picture_svg
from senseapp.ui.fragility import LegendEntry

_DRAWING_ONLY = ("row", "description", "unclear", "ranked", "known", "order", "band")


def chart_downloads(
    chart: alt.Chart | alt.LayerChart,
    *,
    title: str,
    lines: Sequence[str] = (),
    data: pd.DataFrame | None = None,
    legend: Sequence[LegendEntry] = (),
    key: str,
) -> None:
    """Offer ``chart`` as PNG, SVG and CSV; each is made when it is clicked.

    Args:
        chart: as on the page.
        title: of the picture; also names the files.
        lines: below the title, such as where the numbers come from.
        data: the rows of the CSV; None takes those that are drawn. Columns that only drawing needs are left out.
        legend: of the colours, which stands beside the chart on the page.
        key: of the element.
    """

    def table() -> str:
        rows = data if data is not None else drawn_rows(chart)
        return rows.drop(columns=list(_DRAWING_ONLY), errors="ignore").to_csv(index=False, lineterminator="\n")

    files: dict[str, tuple[Callable[[], str | bytes], str, str]] = {
        "png": (lambda: picture_png(chart, title=title, lines=lines, legend=legend), "PNG image", "image/png"),
        "svg": (lambda: picture_svg(chart, title=title, lines=lines, legend=legend), "SVG drawing", "image/svg+xml"),
        "csv": (table, "CSV data", "text/csv"),
    }
    with st.popover("Save", icon=":material/download:", type="tertiary", key=f"{key}.save"):
        for ending, (make, label, mime) in files.items():
            st.download_button(
                label,
                make,
                file_name=f"{fmt.file_stem(title)}.{ending}",
                mime=mime,
                key=f"{key}.{ending}",
                on_click="ignore",
                type="tertiary",
            )
