"""The recommended file for a goal and a tolerance, with its figures and the download button."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import pandas as pd
import streamlit as st

from senseapp.app.common import backend
from senseapp.app.common.decided import (
    Asked,
    asked_of,
    choose_goal,
    choose_promise,
    choose_tolerance,
    decided,
    has_enough_images,
)
from senseapp.app.common.download import file_button, other_files
from senseapp.app.common.figure import figure
from senseapp.app.common.notices import errors_here
from senseapp.app.common.run_guard import begin, start_label, watched
from senseapp.app.common.state import go_to_page, restart_with
from senseapp.app.common.tables import changed_answers
from senseapp.app.results.try_picture import try_picture
from senseapp.core.markdown import md
from senseapp.descriptions import all_descriptions
from senseapp.metrics import METRICS
from senseapp.records.answers import ChangedAnswers
from senseapp.records.candidate import Candidate
from senseapp.records.jobs import RunRecord, RunState
from senseapp.records.measurement import RunResult
from senseapp.records.promise import shortfall
from senseapp.records.recommendation import Recommendation
from senseapp.records.spec import SensitivitySpec
from senseapp.server.delivery_tasks import RecommendationTask, original_in_int8
from senseapp.server.leaderboard import headline
from senseapp.views.charts.savings import candidates_chart, recommended_chart
from senseapp.views.frames.files import (
    AXES,
    answers_axis,
    baseline_value,
    candidates_frame,
    original_row,
    recommended_frame,
)
from senseapp.views.words import format as fmt
from senseapp.views.words.wording import caveat_of

_POLL_SECONDS = 2.0  # a file takes some seconds at least, so an earlier look finds nothing


def recommendation_card(run_id: str, result: RunResult) -> None:
    """Show the answer, the button to the file and the chart; until there is one, how far it is, or what starts it."""
    task, finding = RecommendationTask(run_id=run_id), result.summary or headline(result)
    with errors_here():
        record = backend.service().run(run_id)
        found = backend.service().work.outcome(task)
        can_search = record.state is RunState.DONE and record.spec.data.kind != "imported"
        candidates = backend.service().work.candidates(run_id)
        if not candidates:
            _without_files(run_id, found, finding)
            if found is None and can_search:
                first = original_in_int8(run_id, METRICS[result.judged_by].tolerable)
                if not watched(first, cancel="recommendation.first"):
                    _on_its_way(task)
                st.fragment(_show_first_file, run_every=_POLL_SECONDS)(run_id)
            return
        place = st.container()
        metric = candidates[0].metric
        choose_goal(record, key=f"recommendation.goal.{run_id}")
        if can_search:
            allowed = choose_tolerance(run_id, metric, key=f"recommendation.allowed.{run_id}")
            choose_promise(run_id, metric, allowed, key=f"recommendation.promised.{run_id}")
        asked = asked_of(record, metric)
        is_usual = math.isclose(asked.tolerance, METRICS[metric].tolerable)
        search = replace(task, allowed_drop=None if is_usual else asked.tolerance, promise=asked.promise)
        with place:
            _answer(run_id, candidates, asked, result)
            is_possible = can_search and has_enough_images(candidates, asked.promise)
            if is_possible and backend.service().work.outcome(search) is None:
                _on_its_way(search, again=True)
        candidates_figure(record, candidates, result)
        if found is not None and found.missing:
            st.caption(md(":material/info: {} The file above holds the original weights.", found.missing))
        elif found is not None:
            with st.expander("What does removing more cost?", icon=":material/trending_down:"):
                recommendation_figure(run_id, found, result)
        st.markdown(finding)


def first_answer(record: RunRecord) -> bool:
    """Show the file that was made before the layers of a run are measured; return whether there is any."""
    candidates = backend.service().work.candidates(record.run_id)
    if not candidates:
        return False
    answer = decided(record, candidates)
    if answer.choice is None:
        st.caption(md("No file to take yet: {} {}.", answer.reason, candidates[-1].headline))
        return True
    st.markdown(md("## {}", answer.headline))
    file_button(record.run_id, answer.choice, primary=True)
    made_of = answer.choice.made_of
    st.caption(f"{made_of}. Measured: this very file, in turns with the original. The run goes on.")
    return True


def _without_files(run_id: str, found: Recommendation | None, finding: str) -> None:
    """Show the findings before a file is made; a recommendation without files is from an earlier version."""
    if found is None:
        st.markdown(md("## {}", finding))
        return
    st.markdown(md("## {}", found.headline))
    st.caption(f"{found.evidence} No file was made yet: the Schedule page makes and measures it.")
    st.page_link(
        "pages/targets.py", label="Make the file", icon=":material/deployed_code:", query_params={"run": run_id}
    )
    st.markdown(finding)


def _show_first_file(run_id: str) -> None:
    """Draw the page anew once the search has made its first file."""
    if backend.service().work.candidates(run_id):
        st.rerun()


def _answer(run_id: str, candidates: Sequence[Candidate], asked: Asked, result: RunResult) -> None:
    """Show the recommended file with the reason, and hand it out."""
    answer = asked.decide(candidates)
    st.markdown(md("## {}", answer.headline))
    st.markdown(answer.reason)
    chosen = answer.choice
    if chosen is None:
        if asked.promise is not None and (missing := shortfall(candidates, asked.promise)):
            st.markdown(missing)
        _likelier(result)
    else:
        if chosen.bound_text:
            st.caption(md(":material/verified: {}", chosen.bound_text))
        st.caption(f"{chosen.made_of}. Measured: this very file, in turns with the original. {_tried(chosen)}")
        with st.container(horizontal=True, gap="small"):
            file_button(run_id, chosen, primary=True)
            other_files(run_id, [one for one in candidates if answer.offers(one) or asked.promise is None], chosen)
            try_picture(run_id, chosen)
    if chosen is not None and chosen.schedule is None and not result.compression.description.sets_bits:
        _likelier(result)


def _tried(candidate: Candidate) -> str:
    if candidate.deployment is None:
        return ""
    settings = candidate.deployment.settings
    return (
        f"Times are of {fmt.plural(settings.batch, 'image')} a call on {fmt.plural(settings.threads, 'thread')} of "
        f"{candidate.deployment.machine}."
    )


def _likelier(result: RunResult) -> None:
    """Say that this compression pays little in a file that runs here, and offer the one that is likelier to."""
    own = result.compression.description
    others = [each for each in all_descriptions() if each.pays_when_run and each.name != own.name]
    other = next((each for each in others if each.sets_bits), next(iter(others), None))
    if other is None:
        return
    st.caption(
        f"{own.label} pays little in a file that runs here."
        if own.sets_bits
        else f"{own.label} adds nothing to a file that runs here: int8 of the original weights does as well or better."
    )
    label = f"Measure {other.label.lower()} instead"
    if st.button(label, key="recommendation.likelier", icon=":material/swap_horiz:", help=other.pays):
        settings = SensitivitySpec(
            compression=other.config(), levels=other.scale.default, num_samples=result.num_samples or None
        )
        restart_with(replace(result.spec, sensitivity=settings))
        go_to_page("pages/analyze.py")


def recommendation_answer(record: RunRecord, candidates: Sequence[Candidate], found: Recommendation | None) -> None:
    """Show the figures of the file to take alone, for a room; ``found`` is None where no schedule was searched for."""
    if not candidates:
        if found is not None:
            st.markdown(md("## {}", found.headline))
            st.caption(found.evidence)
        return
    answer = decided(record, candidates)
    st.markdown(md("## {}", answer.headline))
    st.caption(f"{answer.choice.made_of}. {answer.reason}" if answer.choice is not None else answer.reason)


def recommended_answers(run_id: str) -> None:
    """Show the answers that the recommended model changes, once they are known."""
    changed = recommended_changes(run_id)
    if changed is not None:
        st.markdown(md("## Which answers does the proven schedule change?"))
        changed_answers(changed, key=f"recommended.{run_id}")


def recommended_changes(run_id: str) -> ChangedAnswers | None:
    """Return the answers that the recommended model changes; None until they are known."""
    found = backend.recommendation_of(run_id)
    proof = RecommendationTask(run_id=run_id).proof(found) if found is not None else None
    return backend.service().work.changed(proof) if proof is not None else None


def _on_its_way(task: RecommendationTask, *, again: bool = False) -> None:
    title = "Look for files within this loss" if again else "Find the smallest good model"
    label = start_label(task, title, "a recommendation", cancel="recommendation.stop")
    result = backend.result_of(task.run_id) if label else None
    if result:
        seconds = fmt.about(backend.service().schedules.recommendation_seconds(result))
        about = (
            "Measures whole schedules, proves the strongest whose loss is tolerable on held-out images, makes files."
        )
        key = f"recommendation.start.{task.run_id}"
        kind: Literal["primary", "secondary"] = "secondary" if again else "primary"
        if st.button(f"{label} ({seconds})", key=key, icon=":material/science:", type=kind, help=about):
            begin(task)


def candidates_figure(
    record: RunRecord, candidates: Sequence[Candidate], result: RunResult, *, large: bool = False
) -> None:
    """Draw what each measured file still answers against its size; ``large`` for a room."""
    answer = decided(record, candidates)
    rows = candidates_frame(candidates, answer)
    figure(
        "Which files are there?",
        candidates_chart(
            rows,
            against="megabytes",
            y_title=answers_axis(candidates),
            originals=pd.DataFrame([original_row(candidates)]),
            picked=answer.choice.file if answer.choice is not None else "",
        ),
        alt_text="; ".join(rows["description"]),
        key=f"recommendation.files.{record.run_id}",
        caveat=caveat_of(result),
        reading="Each dot is a measured file with its 95 % interval; large: the recommended one; "
        "pale: not worth taking; cross: the original.",
        data=rows,
        level=3,
        saves=not large,
        large=large,
    )


def recommendation_figure(run_id: str, found: Recommendation, result: RunResult, *, large: bool = False) -> None:
    """Draw what whole compressed models still do over the range; ``large`` for a room."""
    if not found.tried:
        return
    view, rows = METRICS[found.metric], recommended_frame(found)
    images = next(change.num_samples for change in found.tried[0].changes)
    figure(
        "How much can be removed?",
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
