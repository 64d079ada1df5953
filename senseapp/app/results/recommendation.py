"""The answer of a run on one screen: the file to take, its button, one chart and why; and the files of the run."""

import math
import re
from collections.abc import Iterator, Sequence
from typing import Literal, get_args

import pandas as pd
import streamlit as st

from senseapp.app.common import backend, run_guard
from senseapp.app.common.download import file_button, other_files
from senseapp.app.common.expert import expert
from senseapp.app.common.figure import MARGINS, figure
from senseapp.app.common.notices import errors_here, show_notes
from senseapp.app.common.tables import changed_answers
from senseapp.app.results.layers import READING, bars_figure
from senseapp.app.results.trials import device_report, try_picture
from senseapp.app.results.view import layers_are_open, usual_view
from senseapp.core.markdown import md
from senseapp.core.texts import listed
from senseapp.metrics import METRICS
from senseapp.prove.decision import Decision, pays
from senseapp.records.answers import ChangedAnswers
from senseapp.records.candidate import Candidate
from senseapp.records.headline import headline
from senseapp.records.jobs import RunRecord, RunState
from senseapp.records.measurement import RunResult
from senseapp.records.promise import shortfall
from senseapp.records.recommendation import Recommendation
from senseapp.records.resolution import baseline_warning, preparation_doubt
from senseapp.records.schedule import ROUNDED_INPUTS, Adapting, Schedule
from senseapp.server.delivery_tasks import RecommendationTask, original_in_int8
from senseapp.server.run_tasks import Verification
from senseapp.views.charts.layers import marked
from senseapp.views.charts.savings import candidates_chart, models_chart, value_channel
from senseapp.views.frames import files
from senseapp.views.words import format as fmt
from senseapp.views.words.wording import caveat_of, markdown_table

_POLL_SECONDS = 2.0  # a file takes some seconds at least, so an earlier look finds nothing
_MOST_BARS = 9  # rows of the one chart


def answer_block(record: RunRecord, result: RunResult) -> None:
    """Show the answer with its button, and beside it one chart: of the files, or of the layers."""
    answer, chart = st.columns([4, 5], gap="medium")
    candidates: tuple[Candidate, ...] = ()
    asked = None
    with answer, errors_here():
        candidates = backend.service().work.candidates(record.run_id)
        if candidates:
            asked = _answer(record, candidates, result)
        else:
            _without_files(record, result)
    with chart:
        if asked is not None and asked.goal in ("smaller", "faster"):
            candidates_figure(record, candidates, result)
        elif not layers_are_open(record.run_id) and (view := usual_view(record.run_id, result)) is not None:
            rows = marked(view.ranked).head(_MOST_BARS)
            bars_figure(view, rows, key=f"answer.bars.{record.run_id}", picks=False, reading=READING)


def _answer(record: RunRecord, candidates: Sequence[Candidate], result: RunResult) -> run_guard.Asked:
    """Show the recommended file with the reason, and hand it out; return what it is the answer to."""
    place = st.container()
    row = st.container(horizontal=True, gap="small")
    searched = st.container()
    with row:
        get, attempt = st.container(width="content"), st.container(width="content")
        with st.popover("Change", icon=":material/tune:", help="What you need, and how much may be lost."):
            suffice = _choose(record, candidates, result, searched)
    asked = run_guard.asked_of(record, candidates[0].metric)
    with place:
        chosen = show_answer(record, candidates, result).choice
        if chosen is None and asked.promise is not None and suffice:
            st.markdown(shortfall(list(filter(pays, candidates)), asked.promise))
    with get:
        run_guard.answer_button(record, asked, chosen, primary=record.state is RunState.DONE)
    if asked.goal != "targets" and chosen is not None:
        with attempt:
            try_picture(record.run_id, chosen)
    return asked


def show_answer(record: RunRecord, candidates: Sequence[Candidate], result: RunResult) -> Decision:
    """Show the decision of a run, or what the goal asks for in its place: the finding on the layers."""
    answer = run_guard.decided(record, candidates)
    if answer.goal == "look" or not candidates:
        st.markdown(md("## {}", headline(result)))
        if answer.choice is not None:  # made on request
            st.markdown(md("**{}**: {}.", answer.headline, answer.choice.made_of))
        elif candidates:
            st.markdown(md("**{}**: {}", answer.headline, answer.reason))
        else:
            show_notes(backend.service().work.missing(record.run_id))
        return answer
    if warning := baseline_warning(result) or preparation_doubt(result):
        st.warning(warning, icon=":material/warning:")
    st.markdown(md("## {}", answer.headline))
    if answer.evidence:
        st.caption(answer.evidence)
    st.markdown(answer.reason)
    if answer.choice is None or not answer.choice.runs:
        show_notes(backend.service().work.missing(record.run_id))
    return answer


def _choose(
    record: RunRecord, candidates: Sequence[Candidate], result: RunResult, searched: st.delta_generator.DeltaGenerator
) -> bool:
    """Show what the answer depends on, and in ``searched`` the search for files; return if images suffice for it."""
    run_id, metric = record.run_id, candidates[0].metric
    run_guard.choose_goal(record)
    run_guard.choose_promise(run_id, metric, run_guard.choose_tolerance(run_id, metric))
    if not run_guard.can_search(record):
        return True
    asked = run_guard.asked_of(record, metric)
    is_usual = math.isclose(asked.tolerance, METRICS[metric].tolerable)
    search = RecommendationTask(
        run_id=run_id, allowed_drop=None if is_usual else asked.tolerance, promise=asked.promise
    )
    with searched:
        suffice, work = run_guard.has_enough_images(candidates, asked.promise), backend.service().work
        if suffice and work.outcome(search) is None:
            _on_its_way(search, f"Search {'again ' * work.was_searched(run_id)}within this loss")
        elif suffice and (asked.promise is not None or not is_usual or work.search_is_long(result)):
            st.caption("Searched within this loss: this is the best that was found.")
    return suffice


def first_answer(record: RunRecord) -> None:
    """Show the file that was made before the layers of a run are measured, if there is any."""
    if not (candidates := backend.service().work.candidates(record.run_id)):
        return
    answer = run_guard.decided(record, candidates)
    if answer.choice is None:
        st.caption(md("No file to take yet: {} {}.", answer.reason, candidates[-1].headline))
        return
    st.markdown(md("## {}", answer.headline))
    if answer.goal != "targets":  # which the whole run gives
        file_button(record.run_id, answer.choice, primary=True)
    st.caption(f"{answer.evidence} The run goes on.")


def _without_files(record: RunRecord, result: RunResult) -> None:
    """Show the finding on the layers, and how far the search for files is, or what starts it."""
    run_id = record.run_id
    task = RecommendationTask(run_id=run_id)
    show_answer(record, (), result)
    if backend.service().work.outcome(task) is None and run_guard.can_search(record):
        first = original_in_int8(run_id, METRICS[result.judged_by].tolerable, target=record.spec.target)
        if not run_guard.watched(first, cancel="recommendation.first"):
            is_asked = record.spec.goal != "look"
            title = "Find the smallest good model" if is_asked else "Make a file from this run"
            _on_its_way(task, title, kind="primary" if is_asked else "tertiary")

        def show_first_file() -> None:
            if backend.service().work.candidates(run_id):
                st.rerun()

        st.fragment(show_first_file, run_every=_POLL_SECONDS)()


def files_section(record: RunRecord, result: RunResult) -> None:
    """Show every file of the run with its own figures, and the buttons to them."""
    if not (candidates := backend.service().work.candidates(record.run_id)):
        st.caption("No file has been made yet.")
        return
    asked = run_guard.asked_of(record, candidates[0].metric)
    answer = asked.decide(candidates)
    heads = {
        "name": "Content",
        "standing": "Worth it",  # in sight on a phone
        "size": "Size",
        "time": "Time of a call",
        "answers": "Answers",
        "loss": files.loss_head(answer),
        "opened_by": "What for",
    }
    st.markdown(markdown_table([*heads.values()], files.candidates_frame(candidates, answer)[[*heads]].to_numpy()))
    for line in dict.fromkeys([files.JUDGED_FOR[asked.goal], *_judged(candidates), *map(_timed, candidates)]):
        st.caption(line)
    other_files(record.run_id, candidates, None if asked.goal == "targets" else answer.choice)
    device_report(record, candidates)


def _judged(candidates: Sequence[Candidate]) -> Iterator[str]:
    """Yield on which images the answers of all files were judged, or of which of them."""
    files_on: dict[str, list[str]] = {}
    for each in candidates:
        files_on.setdefault(each.measured_on, []).append(each.made_of)
    for images, names in files_on.items():
        yield f"Answers on {images}{': ' + listed(names) if len(files_on) > 1 else ''}."


def _timed(candidate: Candidate) -> str:
    """Return what runs the file and the original while their times are taken."""
    if candidate.deployment is None:
        return "Times of PyTorch weights: in PyTorch, in turns with the original there."
    settings, machine = candidate.deployment.settings, candidate.deployment.machine
    where = machine if expert() else f"the processor {re.split(' without | with |,', machine)[0]}"
    return (
        f"Times of {candidate.runtime.file_words}s: {fmt.plural(settings.batch, 'image')} a call on "
        f"{fmt.plural(settings.threads, 'core')} of {where}, in turns with the original."
    )


def schedule_section(record: RunRecord, result: RunResult) -> None:
    """Show what removing more costs, what the tested schedule answers differently, and the way to Schedule."""
    run_id = record.run_id
    st.page_link(
        "pages/targets.py",
        label="Make a schedule",
        icon=":material/arrow_forward:",
        query_params={"run": run_id},
        help="One amount for each layer, chosen by these results, for training tools and files.",
    )
    if (found := backend.recommendation_of(run_id)) is None:
        return
    if found.missing:
        st.caption(md(":material/info: {} The files hold the original weights.", found.missing))
    recommendation_figure(run_id, found, result)
    tested = run_guard.tested_schedule(run_id)
    if tested is not None and (changed := changes_of(run_id, tested)) is not None:
        st.markdown(md("## Which answers does the tested schedule change?"))
        choice = run_guard.decided(record, backend.service().work.candidates(run_id)).choice
        if choice is not None and choice.schedule != tested:
            st.caption("The recommended file is not made by this schedule.")
        if found.validation is not None and found.validation.also_rounded:
            st.caption(ROUNDED_INPUTS)
        changed_answers(changed, key=f"recommended.{run_id}")


def changes_of(run_id: str, tested: Schedule) -> ChangedAnswers | None:
    """Return the answers that a tested schedule changes; None until they are known."""
    proofs = (Verification(run_id=run_id, schedule=tested, adapting=each) for each in get_args(Adapting))
    return next(filter(None, map(backend.service().work.changed, proofs)), None)


def _on_its_way(
    task: RecommendationTask, title: str, *, kind: Literal["primary", "secondary", "tertiary"] = "secondary"
) -> None:
    if result := backend.result_of(task.run_id):
        work = backend.service().work
        seconds = fmt.about(work.recommendation_seconds(result))
        waits = work.search_is_long(result) and not work.was_searched(task.run_id)
        run_guard.outcome_or_offer(
            task,
            f"{title} ({seconds})",
            "a recommendation",
            key="recommendation.start",
            icon="science",
            text=f"The search of a schedule takes {seconds} here, so it was not started by itself." * waits,
            about="Measures whole schedules, tests the strongest with a tolerable loss on unseen images, makes files.",
            kind=kind,
        )


def candidates_figure(
    record: RunRecord, candidates: Sequence[Candidate], result: RunResult, *, large: bool = False
) -> None:
    """Draw what each measured file still answers against its size; ``large`` for a room."""
    answer = run_guard.decided(record, candidates)
    compared = answer.compared(candidates)
    rows = files.candidates_frame(compared, answer)
    figure(
        "Which files are there?",
        candidates_chart(
            rows,
            against="times" if answer.goal == "faster" else "megabytes",
            y_title=files.answers_axis(compared),
            originals=pd.DataFrame([files.original_row(compared)]),
            picked=answer.choice.file if answer.choice is not None else "",
        ),
        alt_text="; ".join(rows["description"]),
        key=f"recommendation.files.{record.run_id}",
        caveat=caveat_of(result),
        reading=f"Marks: measured files, with {MARGINS if answer.promise is None else 'what they may lose'}. "
        f"Large: {'recommended' if answer.goal != 'targets' else 'what the schedule was tested in'}. "
        "Pale: not worth taking. Cross: the original.",
        data=rows,
        level=3,
        saves=False,
        large=large,
    )


def recommendation_figure(run_id: str, found: Recommendation, result: RunResult, *, large: bool = False) -> None:
    """Draw what whole compressed models still do over the range; ``large`` for a room."""
    if not found.tried:
        return
    view, rows = METRICS[found.metric], files.recommended_frame(found)
    images = next(change.num_samples for change in found.tried[0].changes)
    also = found.validation.also_rounded if found.validation is not None else ""
    proven = f"the final test, on {'unseen ones' if found.held_out else 'images also used to make it'}"
    figure(
        files.range_question(found.kind),
        models_chart(
            rows,
            x_title=files.AXES[found.kind],
            y=value_channel(view.value_axis if view.additive else view.axis),
            rule={"y": files.baseline_value(found)},
            falling=found.kind == "bits",
        ),
        alt_text=f"{found.headline}. {found.evidence}",
        key=f"recommendation.chart.{run_id}",
        caveat=caveat_of(result),
        reading=f"Whole models, measured on {fmt.plural(images, 'image')} of the run{also}; diamonds: {proven}.",
        data=rows,
        level=3,
        saves=not large,
        large=large,
    )
