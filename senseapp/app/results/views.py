"""The parts of a Results page below its answer, folded, and its views under More; a new view is one line in a table."""

from collections.abc import Callable, Mapping

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from senseapp.app.common import backend
from senseapp.app.common.address import SWITCH, address_of, bound, choose, named, one_of
from senseapp.app.common.figure import figure, place_of, provenance, rows_height
from senseapp.app.common.notices import errors_here, show_notes
from senseapp.app.common.run_guard import outcome_or_offer, run_line
from senseapp.app.common.state import OpenBlocks, pick, session
from senseapp.app.common.tables import changed_pictures, figures_row
from senseapp.app.results.layer_side import layer_side
from senseapp.app.results.layers import curves_tab, heatmap_tab, layers_tab
from senseapp.app.results.recommendation import files_section, schedule_section
from senseapp.app.results.view import RunView, asks_for_layers, choose_view, layers_key
from senseapp.core.markdown import md
from senseapp.records.jobs import RunRecord
from senseapp.records.layer_findings import QuantizationHistogram
from senseapp.records.measurement import RunResult
from senseapp.records.profile import ModelProfile
from senseapp.records.spec import HistogramObjective, HistogramSpec, HistogramTensor
from senseapp.server.run_tasks import HistogramTask
from senseapp.tasks import task_named
from senseapp.views.charts.axes import PICK
from senseapp.views.charts.histograms import bin_frame, histogram_chart, shares_text
from senseapp.views.charts.layers import network_bars
from senseapp.views.frames.network import ancestors, blocks_of, deepest, network_frame, opened_to
from senseapp.views.palette import fragility_legend
from senseapp.views.words import format as fmt
from senseapp.views.words.wording import caveat_of

_WHOLE = "Whole network"
_PARAMS, _MACS = "Parameters", "Multiplications"
_OPEN_AT_FIRST = 2  # levels: the stages of a network and the blocks inside them
_READING = (
    "Length is the share of the network, colour what it loses; a block loses the average of its layers, weighed by "
    "their {weights}. Long and blue is where to save: click a block to open or close it, a layer to see it everywhere."
)


def network_tab(view: RunView) -> None:
    """Show the tree, and the picked layer beside it."""
    row = st.container(horizontal=True, vertical_alignment="top", gap="medium")
    profile = view.result.profile
    block, by_macs = _choose(view, row)
    rows = network_frame(profile, view.rows, view.metric, opened=_opened(view), block=block, by_macs=by_macs)
    counted = "multiplications" if by_macs else "parameters"
    share = f"Share of all layers' {counted}" if profile.sizes_known else "Share of all layers"
    key = f"network.{view.run_id}.{session().pick_round}"
    chart, side = st.columns([5, 3], gap="medium")
    with chart:
        figure(
            f"Where does the network hold its weight, and what does it lose {view.at}?",
            network_bars(rows, view.metric, share_title=share, sizes=profile.sizes_known, picked=view.picked_row),
            alt_text=f"{fmt.plural(len(rows), 'block')} and layers with their {share.lower()}, coloured by "
            f"{view.metric.change_inside} at {view.level_text}",
            key=key,
            on_pick=lambda: _click(view.run_id, key),
            caveat=caveat_of(view.result),
            reading=_READING.format(weights=counted),
            legend=fragility_legend(view.metric, no_value=not rows["known"].all()),
            frame_height=rows_height(len(rows)),
            shown=place_of(view.picked, list(rows["node"])),
            lines=view.lines,
        )
    with side:
        layer_side(view)


def _choose(view: RunView, row: DeltaGenerator) -> tuple[str, bool]:
    """Return the block to show (empty: all), and whether lengths are MACs; set how many levels are open."""
    profile, run_id = view.result.profile, view.run_id
    blocks = [_WHOLE, *blocks_of(profile)]
    setting = bound(run_id, "block", named({name: name for name in blocks}), _WHOLE, key=f"network.block.{run_id}")
    chosen = row.selectbox("Show", blocks, **setting, help="One block, or all of them.", width=260)
    block = "" if chosen == _WHOLE else chosen
    most, key = deepest(profile, block), f"network.depth.{run_id}.{block}"
    row.number_input(
        "Levels to open",
        min_value=1,
        max_value=most,
        value=min(_OPEN_AT_FIRST, most),
        key=key,
        on_change=lambda: _open_levels(run_id, profile, block, st.session_state[key]),
        help="1 closes all blocks; more opens what is inside them.",
        width=150,
    )
    shares = (_PARAMS, _MACS)
    return block, profile.sizes_known and choose("Length", shares, _PARAMS, run_id, "length", place=row) == _MACS


def _tree(run_id: str) -> OpenBlocks:
    return session().blocks.setdefault(run_id, OpenBlocks())


def _open_levels(run_id: str, profile: ModelProfile, block: str, depth: int) -> None:
    tree = _tree(run_id)
    outside = {name for name in tree.names or () if block and not name.startswith(f"{block}.")}
    tree.names = opened_to(profile, depth, block) | outside


def _opened(view: RunView) -> frozenset[str]:
    """Return the open blocks; a layer that was picked elsewhere opens those that hold it."""
    tree, profile = _tree(view.run_id), view.result.profile
    if tree.names is None:
        tree.names = opened_to(profile, _OPEN_AT_FIRST)
    if view.picked != tree.shown:
        tree.names |= frozenset(ancestors(view.picked))
        tree.shown = view.picked
    return tree.names


def _click(run_id: str, key: str) -> None:
    """Pick the layer, or a block's most fragile one; a block also opens or closes."""
    clicked = st.session_state[key]["selection"].get(PICK) or [{"layer": "", "is_block": False}]
    tree, layer = _tree(run_id), str(clicked[0]["layer"])
    pick(run_id, layer)
    tree.shown = layer
    if clicked[0]["is_block"]:
        tree.names = (tree.names or frozenset()) ^ {str(clicked[0]["node"])}
        session().pick_round += 1  # drawn anew, so that the same block can be clicked again


_TENSORS: dict[HistogramTensor, str] = {"weights": "Weights", "activations": "Inputs", "outputs": "Outputs"}
_WEIGHT_BITS = range(2, 9)
_OBJECTIVES: tuple[HistogramObjective, ...] = ("output", "loss", "mean", "none")


def choose_histogram(view: RunView) -> HistogramSpec:
    """Show the controls; the layer is the picked one, or the most fragile while none is."""
    run_id = view.run_id
    row = st.container(horizontal=True, vertical_alignment="top", gap="medium")
    tensor = choose(
        "Values",
        _TENSORS,
        "weights",
        run_id,
        "values",
        place=row,
        help="Weights, the activations that a layer takes in, or its outputs.",
    )
    bits = row.select_slider(
        "Bits",
        _WEIGHT_BITS,
        **bound(run_id, "grid", one_of(_WEIGHT_BITS), 4, key=f"histogram.bits.{run_id}"),
        width=130,
        help="Of the grid; 8 bits have 255 or 256 points.",
    )
    score = task_named(view.result.spec.model.task).score_label
    titles = {"output": score, "loss": "Loss", "mean": "Mean output", "none": "Nothing"}
    objectives = [name for name in _OBJECTIVES if name != "loss" or view.result.has_labels]
    objective = choose(
        "Sensitivity to",
        {name: titles[name] for name in objectives},
        objectives[0],
        run_id,
        "sensitivity",
        place=row,
        is_list=True,
        help=f"What is back-propagated to the values: each image's {score.lower()}, its loss, or the mean of all its "
        "outputs. Nothing is fastest, and shows the values only.",
        width=160,
    )
    switches = row.container(width="content", gap="xxsmall")
    per_channel = switches.toggle(
        "One scale per channel",
        **bound(run_id, "channel", SWITCH, usual=False, key=f"histogram.channel.{run_id}"),
        help="Each channel gets a grid of its own; places are then in steps, not in values.",
    )
    fold = switches.toggle(
        "Fold normalization",
        **bound(run_id, "fold", SWITCH, usual=False, key=f"histogram.fold.{run_id}"),
        help="Merges the normalization that follows into the layer, as deployment does; the model's output stays.",
    )
    layer = view.picked or str(next(iter(view.ranked["layer"]), view.result.profile.layers[0].name))
    return HistogramSpec(
        layer=layer, tensor=tensor, bits=int(bits), per_channel=per_channel, fold=fold, objective=objective
    )


def histograms_tab(view: RunView) -> None:
    """Show the controls, and the histogram of the picked layer once it is made."""
    if not view.result.spec.model.is_runnable:
        st.info("Imported figures come without a network, so there are no values to look at.", icon=":material/info:")
        return
    spec = choose_histogram(view)
    with errors_here():
        task = HistogramTask(run_id=view.run_id, spec=spec)
        text = md(
            "## {}\n\nLooks at up to {} of this run; a large network takes some seconds. Choose another layer above.",
            _question(spec),
            fmt.plural(spec.num_images, "image"),
        )
        histogram = outcome_or_offer(
            task, "Show histogram", "this histogram", key="histogram.start", icon="bar_chart", text=text, kind="primary"
        )
        if histogram is not None:
            _show(histogram, view)


def _question(spec: HistogramSpec) -> str:
    return f"Where do the {spec.tensor} of {spec.layer} lie on the quantization grid, and which matter?"


def _show(histogram: QuantizationHistogram, view: RunView) -> None:
    spec = histogram.spec
    figures_row(
        {
            "Become zero": fmt.percent(histogram.zero_share, digits=1),
            "Clamped": fmt.percent(histogram.clamped_share, digits=3),
            "True range": f"{histogram.low:.4g} to {histogram.high:.4g}".replace("-", "−"),
            "Step": f"{histogram.scale:.4g}" if histogram.scale == histogram.scale else "one per channel",
            "Values": fmt.count(histogram.total),
            "Images": str(histogram.num_images),
        },
        helps={
            "Become zero": "Share of the values that are rounded to 0.",
            "Clamped": "Share of the values beyond the grid's ends.",
            "Step": "Distance of neighbouring grid points.",
        },
        key="histogram_figures",
    )
    settings = [
        f"{spec.tensor} of {spec.layer}",
        f"{spec.bits} bits",
        "one scale per channel" if spec.per_channel else "one scale",
        *(["normalization folded"] if spec.fold and not histogram.notes else []),
    ]
    shares = f"{shares_text(histogram)}, {fmt.plural(histogram.num_images, 'image')}"
    figure(
        _question(spec),
        histogram_chart(histogram),
        alt_text=f"{spec.tensor} of {spec.layer} on a grid of {spec.bits} bits: {shares_text(histogram)}.",
        key=f"histogram.bars.{view.run_id}",
        caveat=caveat_of(view.result),
        reading="Bars count the values around each grid point, the orange line is how much each place matters, dashed "
        "lines are the means of the cells and, in red, the true range. Where sensitive values crowd into few cells or "
        "vanish into zero, give the layer more bits; scroll to zoom.",
        lines=(f"{view.result.profile.title} · {' · '.join(settings)}", shares),
        data=bin_frame(histogram, every_bin=True),
    )
    show_notes(histogram.notes)


_MORE = {"Network": network_tab, "Histograms": histograms_tab}


def _more_tab(view: RunView) -> None:
    names = list(_MORE)
    _MORE[choose("View", names, names[0], view.run_id, "more", label_visibility="collapsed")](view)


VIEWS: dict[str, Callable[[RunView], None]] = {
    "Layers": layers_tab,
    "Curves": curves_tab,
    "Heat map": heatmap_tab,
    "More": _more_tab,
}


def folded_sections(record: RunRecord, result: RunResult) -> None:
    """Show the sections below the answer; each is drawn once it is opened."""
    run_id = record.run_id
    sections: dict[str, tuple[str, str, Callable[[], None]]] = {
        "files": ("Other files", "folder_open", lambda: files_section(record, result)),
        "layers": ("Layers", "bar_chart", lambda: result_views(run_id, result, address_of(run_id))),
        "schedule": ("Schedule", "tune", lambda: schedule_section(record, result)),
        "details": ("Details", "info", lambda: _details(record, result)),
    }
    for name, (label, icon, show) in sections.items():
        key = layers_key(run_id) if name == "layers" else f"results.show.{name}.{run_id}"
        bound(run_id, f"show-{name}", SWITCH, name == "layers" and asks_for_layers(run_id), key=key)
        with st.expander(label, icon=f":material/{icon}:", key=key, on_change="rerun") as section:
            if section.open:
                with errors_here():
                    show()


def _details(record: RunRecord, result: RunResult) -> None:
    def pictures() -> None:
        for found in backend.service().changed_answers(record.run_id)[:1]:
            changed_pictures(found, key="read")

    st.caption(md("{}", run_line(record, result.profile.title)))
    provenance(result, pictures=pictures)


@st.fragment
def result_views(run_id: str, result: RunResult, links: Mapping[str, str]) -> None:
    """Show the pickers and the open tab; after a click that its ``links`` do not hold, the page is drawn again."""
    with st.container(gap="xsmall"):
        view = choose_view(run_id, result, page="results", layers=True)
        if view is None:
            return
        key = f"results.tab.{run_id}"
        bound(run_id, "tab", one_of(VIEWS), next(iter(VIEWS)), key=key)
        tabs = st.tabs(list(VIEWS), on_change="rerun", key=key)
    for tab, show in zip(tabs, VIEWS.values(), strict=True):
        if tab.open:
            with tab:
                show(view)
    if address_of(run_id) != links:
        st.rerun()
