"""The answer first: what is recommended after a run, how that is known, and the file to take away."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import streamlit as st

from senseapp.app.charts.recommended import recommended_chart
from senseapp.app.common import backend
from senseapp.app.common.address import bound, named
from senseapp.app.common.answers import changed_answers
from senseapp.app.common.download import download
from senseapp.app.common.figure import figure
from senseapp.app.common.jobs import begin, start_label
from senseapp.app.common.notices import errors_here
from senseapp.app.frames.recommended import AXES, baseline_value, recommended_frame
from senseapp.app.words import format as fmt
from senseapp.app.words.wording import caveat_of
from senseapp.core.errors import SenseError
from senseapp.metrics import METRICS
from senseapp.records.jobs import RunState
from senseapp.records.measurement import SensitivityResult
from senseapp.records.model_files import model_file
from senseapp.records.recommendation import Recommendation
from senseapp.runs.leaderboard import headline
from senseapp.runs.schedule_tasks import RecommendationTask, Verification
from senseapp.runs.service import Service

_STEM = "compressed"
_TOLERANCES = (0.2, 0.5, 1.0, 2.0)  # of the usual one


def recommendation_card(run_id: str, result: SensitivityResult) -> None:
    """Show the answer, the button to the file and the chart; until there is one, how far it is, or what starts it."""
    task, finding = RecommendationTask(run_id=run_id), result.summary or headline(result)
    with errors_here():
        record = backend.service().run(run_id)
        found = backend.service().work.outcome(task)
        can_search = record.state is RunState.DONE and record.spec.data.kind != "imported"
        if found is not None:
            place = st.container()
            asked = replace(task, allowed_drop=_tolerated(run_id, found) if can_search else None)
            found = backend.service().work.outcome(asked)
            with place:
                if found is None:
                    st.markdown(f"## {finding}")
                    _on_its_way(asked)
                    return
                recommendation_answer(asked, found)
            recommendation_figure(run_id, found, result)
            st.markdown(finding)
            return
        st.markdown(f"## {finding}")
        if can_search:
            _on_its_way(task)


def _tolerated(run_id: str, usual: Recommendation) -> float | None:
    """Let another loss be tolerated; None for the usual one, whose recommendation is known."""
    view = METRICS[usual.metric]
    allowed = [share * usual.allowed_drop for share in _TOLERANCES]
    form = named({f"{view.factor * loss:g}": loss for loss in allowed})
    chosen = st.segmented_control(
        f"Tolerable loss ({view.change_unit})" if view.change_unit else "Tolerable loss",
        allowed,
        format_func=lambda loss: f"{view.factor * loss:g}",
        required=True,
        **bound(run_id, "tolerated", form, usual.allowed_drop, key=f"recommendation.allowed.{run_id}"),
        help=f"{view.change_title}, at most. Another one takes a search of its own.",
    )
    return None if chosen == usual.allowed_drop else chosen


def recommendation_answer(task: RecommendationTask, found: Recommendation) -> None:
    """Show what is recommended, the button to the file, and how it is known."""
    st.markdown(f"## {found.headline}")
    proof = task.proof(found)
    if proof is not None:
        _file_button(proof)
    st.caption(found.evidence)


def recommended_answers(run_id: str) -> bool:
    """Show what the recommended model answers differently; tell whether that is known yet."""
    task = RecommendationTask(run_id=run_id)
    found = backend.recommendation_of(run_id)
    proof = task.proof(found) if found is not None else None
    changed = backend.service().work.changed(proof) if proof is not None else None
    if changed is not None:
        st.markdown("## Which answers does the recommended model change?")
        changed_answers(changed, key=f"recommended.{run_id}")
    return changed is not None


def _file_button(proof: Verification) -> None:
    owned = backend.service()
    try:
        path = smallest_file(owned, proof)
    except SenseError:  # imported with its record alone, or deleted
        return
    form = model_file(path.name)
    st.download_button(
        f"Download the model ({fmt.bytes_size(path.stat().st_size)})",
        download(partial(smallest_file, owned, proof)),
        file_name=_STEM + form.suffix,
        key=f"recommendation.file.{proof.run_id}",
        icon=":material/download:",
        type="primary",
        on_click="ignore",
        help=f"The compressed model: {form.title}. Its schedule, its proof, other files and the lines that read them "
        "are on the page Schedule.",
    )


def smallest_file(owned: Service, proof: Verification) -> Path:
    """Return the smallest file of the compressed model, if its visitor may still read the run."""
    return min(owned.work.compressed_model(proof), key=lambda path: path.stat().st_size)


def _on_its_way(task: RecommendationTask) -> None:
    label = start_label(task, "Find how much can be saved", "a recommendation", cancel="recommendation.stop")
    if label:
        seconds = fmt.about(backend.service().schedules.recommendation_seconds(task.run_id))
        about = (
            "Measures whole schedules, and proves the strongest whose loss is small on images used for nothing else."
        )
        key = f"recommendation.start.{task.run_id}"
        if st.button(f"{label} ({seconds})", key=key, icon=":material/science:", type="primary", help=about):
            begin(task)


def recommendation_figure(
    run_id: str, found: Recommendation, result: SensitivityResult, *, large: bool = False
) -> None:
    """Draw what whole compressed models still do over the range; ``large`` for a room."""
    if not found.tried:
        return
    view, rows = METRICS[found.metric], recommended_frame(found)
    images = next(change.num_samples for change in found.tried[0].changes)
    figure(
        "How much can be saved?",
        recommended_chart(
            rows,
            before=baseline_value(found),
            x_title=AXES[found.kind],
            y_title=view.value_axis if view.additive else view.axis,
            falling=found.kind == "bits",
        ),
        alt_text=f"{found.headline}. {found.evidence}",
        key=f"recommendation.chart.{run_id}",
        caveat=caveat_of(result),
        reading=f"Whole models, measured on {fmt.plural(images, 'image')} of the run; diamonds: the proof.",
        data=rows,
        level=3,
        saves=not large,
        large=large,
    )
