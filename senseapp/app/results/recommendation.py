"""The recommended file for a goal and a tolerance, with its figures and the download button."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import pandas as pd
import streamlit as st

from senseapp.app.common import backend
from senseapp.app.common.address import bound, named, one_of
from senseapp.app.common.download import (
    choose_promise,
    choose_tolerance,
    file_button,
    has_enough_images,
    other_files,
)
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
from senseapp.records.candidate import Candidate, offered, recommended
from senseapp.records.goal import GOALS, Goal
from senseapp.records.jobs import RunRecord, RunState
from senseapp.records.measurement import RunResult
from senseapp.records.promise import Promise, kept, shortfall
from senseapp.records.recommendation import Recommendation
from senseapp.records.spec import RunSpec, SensitivitySpec
from senseapp.server.delivery_tasks import RecommendationTask, original_in_int8
from senseapp.server.leaderboard import headline
from senseapp.views.charts.axes import PICK
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
        goal, usual = _goal(run_id, record.spec), METRICS[candidates[0].metric].tolerable
        allowed, promise, metric = usual, None, candidates[0].metric
        if can_search:
            allowed = choose_tolerance(run_id, metric, key=f"recommendation.allowed.{run_id}")
            promise = choose_promise(run_id, metric, allowed, key=f"recommendation.promised.{run_id}")
        asked = task if math.isclose(allowed, usual) else replace(task, allowed_drop=allowed)
        asked = replace(asked, promise=promise)
        with place:
            if promise is None:
                _answer(run_id, candidates, goal, allowed, result)
            else:
                _promised_answer(run_id, candidates, goal, promise, result)
            is_possible = can_search and has_enough_images(candidates, promise)
            if is_possible and backend.service().work.outcome(asked) is None:
                _on_its_way(asked, again=True)
        candidates_figure(run_id, candidates, result)
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
    allowed = METRICS[candidates[0].metric].tolerable
    best = recommended(candidates, goal=record.spec.goal, allowed_drop=allowed)
    if best is None:
        st.caption(md("A first file is not recommended: {} ({}).", candidates[-1].headline, candidates[-1].evidence))
        return True
    st.markdown(md("## {}", best.headline))
    file_button(record.run_id, best, primary=True)
    st.caption(f"{best.made_of}. Measured: this very file, in turns with the original. The layers are measured next.")
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


def _goal(run_id: str, spec: RunSpec) -> Goal:
    goals = list(GOALS)
    chosen: Goal = st.segmented_control(
        "What counts",
        goals,
        format_func=GOALS.__getitem__,
        required=True,
        **bound(run_id, "for", one_of(goals), spec.goal, key=f"recommendation.goal.{run_id}"),
        help="Which of the measured files is recommended: the smallest, the fastest here, or the strongest schedule "
        "for a training tool.",
    )
    return chosen


def _promised_answer(
    run_id: str, candidates: Sequence[Candidate], goal: Goal, promise: Promise, result: RunResult
) -> None:
    """Show the best file that keeps ``promise``; without one, say what would be needed."""
    good = kept(candidates, promise)
    if good:
        _answer(run_id, good, goal, promise.most, result)
        tested = f"{fmt.plural(len(candidates), 'file')} tested on held-out images"
        st.caption(md(":material/verified: Each file offered here loses {}: {}.", promise.text, tested))
        return
    st.markdown(md("## Keep the original: no file is shown to lose {}", promise.text))
    st.markdown(shortfall(candidates, promise))


def _answer(run_id: str, candidates: Sequence[Candidate], goal: Goal, allowed: float, result: RunResult) -> None:
    """Show the recommended file, let a smaller or a safer one be chosen, and hand it out."""
    best, choices = recommended(candidates, goal=goal, allowed_drop=allowed), offered(candidates)
    if goal == "targets" and best is not None and best not in choices:
        choices = (*choices, best)
    if not choices:
        st.markdown(md("## Keep the original: no file that was measured is smaller or faster"))
        _likelier(result)
        return
    place = st.container(gap="small")  # the answer stands above the slider that changes it
    chosen = _chosen(run_id, choices, best or min(choices, key=lambda each: each.loss.delta))
    with place:
        if best is None:
            lost = METRICS[choices[0].metric].change_text(allowed)
            st.markdown(md("## Keep the original: every smaller or faster file loses more than {}", lost))
            st.markdown(md("**Measured:** {}", chosen.headline))
            _likelier(result)
        else:
            st.markdown(md("## {}", chosen.headline))
            if not chosen.within(allowed):
                st.caption("This file loses more than is tolerated.")
        with st.container(horizontal=True, gap="small"):
            file_button(run_id, chosen, primary=best is not None)
            other_files(run_id, candidates, chosen)
            try_picture(run_id, chosen)
    if chosen.bound_text:
        st.caption(md(":material/verified: {}", chosen.bound_text))
    st.caption(f"{chosen.made_of}. Measured: this very file, in turns with the original. {_tried(chosen)}")
    if best is not None and chosen.schedule is None and not result.compression.description.sets_bits:
        _likelier(result)


def _chosen(run_id: str, choices: Sequence[Candidate], best: Candidate) -> Candidate:
    """Return the file that the slider is at: the recommended one at first."""
    if len(choices) == 1:
        return choices[0]
    by_file = {each.file: each for each in choices}
    form = named({str(place): each.file for place, each in enumerate(choices)})
    key = f"recommendation.file.{run_id}"
    if st.session_state.get(key) not in by_file:
        st.session_state.pop(key, None)
    file = st.select_slider(
        "Smaller ↔ safer",
        list(by_file),
        format_func=lambda name: _short(by_file[name], choices),
        **bound(run_id, "file", form, best.file, key=key),
        help="Files that were made and measured, the smallest first.",
    )
    return by_file[str(file)]


def _short(candidate: Candidate, choices: Sequence[Candidate]) -> str:
    """Return the size of a file; with its time, and with its answers, where another choice would be called the same."""

    def words(one: Candidate, count: int) -> str:
        return ", ".join((fmt.bytes_size(one.figures.file_bytes), one.time_text, one.answers_text)[:count])

    others = [each for each in choices if each is not candidate]
    alone = (count for count in (1, 2) if all(words(each, count) != words(candidate, count) for each in others))
    return words(candidate, next(alone, 3))


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


def recommendation_answer(
    run_id: str, candidates: Sequence[Candidate], found: Recommendation | None, goal: Goal
) -> None:
    """Show the figures of the file to take alone, for a room; ``found`` is None where no schedule was searched for."""
    if not candidates:
        if found is not None:
            st.markdown(md("## {}", found.headline))
            st.caption(found.evidence)
        return
    allowed = METRICS[candidates[0].metric].tolerable if found is None else found.allowed_drop
    best = recommended(candidates, goal=goal, allowed_drop=allowed)
    if best is not None:
        st.markdown(md("## {}", best.headline))
        st.caption(best.made_of)
    else:
        st.markdown(md("## Keep the original: no smaller or faster file loses as little as is tolerated"))


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


def candidates_figure(run_id: str, candidates: Sequence[Candidate], result: RunResult, *, large: bool = False) -> None:
    """Draw what each measured file still answers against its size; a click chooses one; ``large`` for a room."""
    rows = candidates_frame(candidates)
    key = f"recommendation.files.{run_id}"
    figure(
        "Which files are there?",
        candidates_chart(
            rows,
            against="megabytes",
            y_title=answers_axis(candidates),
            originals=pd.DataFrame([original_row(candidates)]),
            picked=str(st.session_state.get(f"recommendation.file.{run_id}", "")),
            picks=not large,
        ),
        alt_text="; ".join(rows["description"]),
        key=key,
        on_pick=None if large else (lambda: _take(key, run_id)),
        caveat=caveat_of(result),
        reading="Each dot is a measured file with its 95 % interval; pale: another is no larger, no slower and no "
        "worse; cross: the original.",
        data=rows,
        level=3,
        saves=not large,
        large=large,
    )


def _take(key: str, run_id: str) -> None:
    picked = st.session_state[key]["selection"].get(PICK) or []
    if picked:
        st.session_state[f"recommendation.file.{run_id}"] = str(picked[0]["file"])


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
