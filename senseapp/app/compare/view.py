"""A comparison of runs: their files, pictures answered differently, the finding in one sentence, bars in pairs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from operator import attrgetter

import pandas as pd
import streamlit as st

from senseapp.app.common import backend
from senseapp.app.common.address import ASKED_SETTINGS, bound, choose, follow, named
from senseapp.app.common.expert import metrics_shown
from senseapp.app.common.figure import figure, rows_height
from senseapp.app.common.notices import answer_or_wait, complain
from senseapp.app.common.run_guard import Asked, answer_button, asked_of
from senseapp.app.common.state import drop_pick, picked_layer, session
from senseapp.app.common.tables import text_table
from senseapp.core.errors import SenseError
from senseapp.core.markdown import md
from senseapp.core.texts import distinct
from senseapp.metrics import Metric
from senseapp.records.answers import LabelledAnswer, differences
from senseapp.records.candidate import Candidate
from senseapp.records.comparison import Comparison
from senseapp.records.jobs import RunRecord
from senseapp.tasks import task_named
from senseapp.views.charts.layers import pair_step, paired_bars
from senseapp.views.charts.savings import candidates_chart
from senseapp.views.frames import files as file_frames
from senseapp.views.frames.comparison import (
    caveat_of_sides,
    finding,
    letter,
    matching_text,
    pair_frame,
    side_labels,
    unmatched_frame,
)
from senseapp.views.palette import CATEGORIES, LegendEntry
from senseapp.views.words import format as fmt

_PICKS = "compare"
_SIZE, _TIME = "Size", "Time"
_MOST_PICTURES = 24  # four rows on a wide screen, each a picture that the server reads
_WIDTH = 150  # pixels: a line of a caption holds an answer with its probability
_SIDES = {"first": "Compare", "second": "With"}
"""Names of both files in the address, and the labels of their fields."""
_Answers = Mapping[str, LabelledAnswer]
KnownFiles = Sequence[tuple[str, RunRecord, tuple[Candidate, ...]]]
"""The letter of each run (empty for a single one), the run and its files."""


def with_side(side: str, title: str) -> str:
    """Return the title of a run behind its letter, if it has one."""
    return f"{side} · {title}" if side else title


@st.fragment
def files_view(records: Sequence[RunRecord]) -> None:
    """Show the measured files of the runs as a choice: what each still answers against its size or its time."""
    known, without = list[tuple[str, RunRecord, tuple[Candidate, ...]]](), list[str]()
    for place, record in enumerate(records):
        try:
            candidates = backend.service().work.candidates(record.run_id)
        except SenseError as error:
            complain(str(error))
            continue
        side = letter(place) if len(records) > 1 else ""
        if candidates:
            known.append((side, record, candidates))
        else:
            without.append(with_side(side, record.title))
    if not known:
        st.caption("None of these runs has a measured file yet. Results makes files, or offers to.")
        return
    follow(known[0][1].run_id, ASKED_SETTINGS)
    if without:
        st.caption(md("Without a measured file: {}.", "; ".join(without)))
    if len({candidates[0].metric for _, _, candidates in known}) > 1:
        st.caption("These runs judge answers in different ways, so their files are not drawn on one axis.")
        _best_files(known)
        return
    shown = choose("Against", (_SIZE, _TIME), _SIZE, "compare", "against", label_visibility="collapsed")
    parts, originals = [], []
    for side, record, candidates in known:
        asked = _asked(known, record)
        answer, name = asked.decide(candidates), _judged(side, record, asked)
        parts.append(file_frames.candidates_frame(answer.compared(candidates), answer, run=name))
        originals.append(file_frames.original_row(answer.compared(candidates), run=name))
    if len(known) > 1:
        st.caption(md("The tolerable loss set for run {} holds for all of them here.", known[0][0]))
    rows = pd.concat(parts, ignore_index=True)
    figure(
        "Which file to take?",
        candidates_chart(
            rows,
            against="megabytes" if shown == _SIZE else "milliseconds",
            y_title=file_frames.answers_axis(known[0][2]),
            originals=pd.DataFrame(originals),
        ).properties(height=300 + 24 * len(known)),  # pixels; a line of the legend for each run
        alt_text="; ".join(rows["run"] + ": " + rows["description"]),
        key="compare.files",
        reading="Marks: measured files with interval or bound; pale: not worth taking by what their run is judged by; "
        "crosses: the originals.",
        data=rows,
    )
    _best_files(known)
    pictures_view(known)


def _best_files(known: KnownFiles) -> None:
    for side, record, candidates in known:
        asked = _asked(known, record)
        answer = asked.decide(candidates)
        with st.container(horizontal=True, vertical_alignment="center"):
            st.markdown(md("**{}**: {}. {}", _judged(side, record, asked), answer.headline, answer.reason))
            answer_button(record, asked, answer.choice, primary=False)


def _judged(side: str, record: RunRecord, asked: Asked) -> str:
    return f"{with_side(side, record.title)}, judged by {file_frames.JUDGED_BY[asked.goal]}"


def _asked(known: KnownFiles, record: RunRecord) -> Asked:
    """Return what is asked of a run: its own goal, and what may be lost in the first one where that is judged alike."""
    (_, first, files), *_ = known
    metric = next(files[0].metric for _, each, files in known if each is record)
    own, held = asked_of(record, metric), asked_of(first, files[0].metric)
    return replace(own, tolerance=held.tolerance, promise=held.promise) if metric == files[0].metric else own


@dataclass(frozen=True, slots=True, kw_only=True)
class _Choice:
    """One network to compare: a file of the run that ``side`` stands for, or the original (``file`` None)."""

    side: str
    record: RunRecord
    files: tuple[Candidate, ...]
    file: Candidate | None

    @property
    def label(self) -> str:
        """The run with its letter, the file and its size."""
        size = f", {fmt.bytes_size(self.file.figures.file_bytes)}" if self.file is not None else ""
        return f"{with_side(self.side, self.record.title)}: {self.name}{size}"

    @property
    def name(self) -> str:
        """What the file holds."""
        return self.file.made_of if self.file is not None else "the original"

    @property
    def text(self) -> str:
        """Names the choice in the address."""
        return f"{self.record.run_id[:8]}.{self.file.file if self.file else 'original'}"

    def answers(self) -> _Answers | None:
        """Return its answers; None where they were not kept."""
        work = backend.service().work
        for each in self.files if self.file is None else (self.file,):
            if (found := work.answers(self.record.run_id, each)) is not None:
                return found.original if self.file is None else found.file
        return None


def pictures_view(known: KnownFiles) -> None:
    """Show a choice of two files, and the pictures on which their predictions differ."""
    st.markdown(md("## Which pictures do two files answer differently?"))
    _, first, _ = known[0]
    if reason := task_named(first.spec.model.task).not_compared:
        st.caption(reason)
        return
    images = attrgetter("kind", "name", "path")
    alike = [each for each in known if images(each[1].spec.data) == images(first.spec.data)]
    if others := [each[1].title for each in known if each not in alike]:
        st.caption(f"Left out, as they were measured on other images than {first.title}: {', '.join(others)}.")
    chosen = _choose(alike)
    if chosen[0].text == chosen[1].text:
        st.caption("Choose two different files, or a file and the original.")
        return
    sides = [each.answers() for each in chosen]
    if sides[0] is not None and sides[1] is not None:
        of_one_run = chosen[0].record is chosen[1].record
        _show(first, [each.name if of_one_run else each.side for each in chosen], sides[0], sides[1])
        return
    for each, side in zip(chosen, sides, strict=True):
        if side is None:
            st.caption(f"{each.label}: its answers were not kept. Make the file again to see this.")


def _choose(known: KnownFiles) -> list[_Choice]:
    """Return two networks: at first the best files of two runs, or the original of one and its best file."""
    by_text: dict[str, _Choice] = {}
    best = []
    for side, record, files in known:
        choose = partial(_Choice, side=side, record=record, files=files)
        best.append(choose(file=_asked(known, record).decide(files).choice or files[0]))
        by_text |= {each.text: each for each in (choose(file=file) for file in (*files, None))}
    usual = best[:2] if len(best) > 1 else [[*by_text.values()][-1], best[0]]
    form, labels = named({text: text for text in by_text}), distinct({key: each.label for key, each in by_text.items()})
    texts = [
        column.selectbox(
            title,
            list(by_text),
            format_func=labels.__getitem__,
            **bound("compare", f"file-{side}", form, first.text, key=f"compare.file.{side}"),
        )
        for column, (side, title), first in zip(st.columns(2), _SIDES.items(), usual, strict=True)
    ]
    return [by_text[text] for text in texts]


def _show(record: RunRecord, names: Sequence[str], first: _Answers, second: _Answers) -> None:
    found = differences(first, second)
    st.markdown(md("**{}**", file_frames.difference_sentence(found, names)))
    shown = dict(islice(found.different.items(), _MOST_PICTURES))
    if not shown:
        return
    pictures: dict[str, bytes] = {}
    if record.read_only:
        st.caption("Only the owner of the run sees its pictures.")
    elif record.spec.data.kind != "random":
        wanted = tuple(shown)
        key = "pictures", record.run_id, wanted
        pictures = (
            answer_or_wait(
                lambda: backend.ask(key, lambda owned: owned.work.pictures(record.run_id, wanted)),
                "Reading these pictures",
            )
            or {}
        )
    if len(shown) < len(found.different):
        st.caption(f"The {len(shown)} that both are surest of.")
    with st.container(horizontal=True, gap="small", key="compare_pictures"):
        for image, answers in shown.items():
            with st.container(width=_WIDTH, gap="xsmall"):
                if image in pictures:
                    st.image(pictures[image], width=_WIDTH)
                label = answers[0].label
                lines = [image if label is None else label, *map(file_frames.difference_line, names, answers)]
                st.caption(md("  \n").join(md("{}", line) for line in lines))


@st.fragment
def comparison_view(comparison: Comparison) -> None:
    """Show what each layer loses in each run; a click answers without running the rest of the page again."""
    views = metrics_shown(comparison.metric, comparison.sides)
    st.markdown(md("## {}", finding(comparison)))
    st.caption(
        matching_text(comparison, views[0]),
        help="1 is the same order, 0 no relation, −1 the opposite order (Spearman). Layers are matched by name; "
        "those that are compressed together in every run count once.",
    )
    if comparison.layers:
        _bars(comparison, views)
    rows = unmatched_frame(comparison)
    if not rows.empty:
        heads = ["Layer", *(f"In {letter(side)}" for side in range(len(comparison.sides)))]
        title = f"{fmt.plural(len(rows), 'layer')} without a value in every run"
        with st.expander(title, expanded=not comparison.layers):
            alt_text = "Layers that lack a value in a run, with the reason"
            text_table(heads, rows.to_numpy(), alt_text=alt_text, key="compare.unmatched")


def _bars(comparison: Comparison, views: Sequence[Metric]) -> None:
    rows, labels = pair_frame(comparison, views), side_labels(comparison.sides)
    metric, layer = views[0], picked_layer(_PICKS)
    picked = layer if any(layer == known.layer for known in comparison.layers) else ""
    figure(
        "What does each layer lose in each run?",
        paired_bars(rows, metric, labels=labels, picked=picked),
        alt_text=f"{metric.change_title} of {fmt.plural(len(comparison.layers), 'layer')} in {' and '.join(labels)}. "
        + finding(comparison),
        key=f"compare.bars.{session().pick_round}",
        run_id=_PICKS,
        about=f"{metric.label}: {metric.help}",
        reading="One bar per run, layer by layer; the line through it is its 95 % interval. Pale bars are estimates."
        + " Answers are counted by each run's own measurements." * (len(set(views)) > 1),
        caveat=caveat_of_sides(comparison.sides),
        legend=[LegendEntry(color=colour, text=label) for colour, label in zip(CATEGORIES, labels, strict=False)],
        frame_height=rows_height(len(comparison.layers), step=pair_step(len(labels))),
    )
    if not picked:
        return
    with st.container(border=True, key="compare_picked"):
        head = st.container(horizontal=True, horizontal_alignment="distribute", vertical_alignment="center")
        head.markdown(md("**{}**", picked))
        head.button("Close", key="compare.close", type="tertiary", on_click=drop_pick, args=(_PICKS,))
        told = rows.loc[rows["layer"] == picked, ["side", "change_text", "interval_text", "rank_text", "source"]]
        lines = (md(":small[{}: **{}** ({}), rank {}, {}]", *texts) for texts in told.itertuples(index=False))
        st.markdown(md("  \n").join(lines))
