"""Milliseconds as the goal of a schedule: where times of layers come from, and how long a call may take."""

from __future__ import annotations

import math

import streamlit as st

from senseapp.app.common import backend
from senseapp.app.common.address import bound, number, one_of
from senseapp.app.common.jobs import begin, start_label
from senseapp.app.common.notices import errors_here
from senseapp.app.common.uploads import expect_files, read_upload
from senseapp.app.schedule.settings import TimeGoal, choose_runtime
from senseapp.core.markdown import code, md
from senseapp.descriptions.runtimes import runtime_words
from senseapp.records.layer_times import LayerTimes
from senseapp.records.measurement import RunResult
from senseapp.server.schedule_tasks import TimingTask
from senseapp.solve.time_budget import time_range
from senseapp.store.layer_times import merged

_MOST_MEGABYTES = 50
_HERE, _FILES = "On this machine", "From files"
_CSV = "says its levels itself"


def choose_time(run_id: str, result: RunResult) -> TimeGoal | None:
    """Show where times come from and how long a call may take; None while there are no times, or none differ."""
    description = result.compression.description
    sources = [_FILES] if description.zeroes_weights else [_HERE, _FILES]
    source = st.segmented_control(
        "Times of layers",
        sources,
        required=True,
        **bound(run_id, "times", one_of(sources), sources[0], key=f"schedule.times_from.{run_id}"),
        help="Measured on this machine, bits as float and int8 with what changes between them cost; or from a CSV with "
        "the columns layer,level,ms, or profiles of onnxruntime, trtexec or benchmark_model.",
    )
    with errors_here():
        times = _measured(run_id, result) if source == _HERE else _from_files(run_id, result)
        if times is not None:
            return _choose(run_id, result, times)
    return None


def _measured(run_id: str, result: RunResult) -> LayerTimes | None:
    task = TimingTask(run_id=run_id, runtime=choose_runtime(run_id, setting="times_runtime"))
    times = backend.service().work.outcome(task)
    if times is None and (label := start_label(task, "Time the layers", "these times", cancel="schedule.times_stop")):
        levels = "as float and as int8" if result.compression.description.sets_bits else "at every level of this run"
        runtime = runtime_words(task.runtime).label
        st.markdown(md("Every layer runs in {} {}, one image a call on one thread.", runtime, levels))
        if st.button(label, key=f"schedule.times.{run_id}", type="primary", icon=":material/timer:"):
            begin(task)
    return times


def _from_files(run_id: str, result: RunResult) -> LayerTimes | None:
    if not backend.visitor().is_known:
        st.info("Log in to send files.")
        return None
    expect_files()
    files = st.file_uploader(
        "Files of times",
        accept_multiple_files=True,
        type=["csv", "json", "txt", "log"],
        key=f"schedule.times_files.{run_id}",
        help="One CSV for all levels, or one profile of the network as it is and one for each level.",
        max_upload_size=_MOST_MEGABYTES,
    )
    scale = result.compression.scale
    levels = {_CSV: None} | {scale.text(level): level for level in (scale.untouched, *result.levels)}
    parts = []
    for index, file in enumerate(files):
        names = [_CSV] if file.name.lower().endswith(".csv") else [*[*levels][1:], _CSV]  # a table may be called .txt
        chosen = st.selectbox(md("Level of {}", code(file.name)), names, key=f"schedule.times_level.{index}.{run_id}")
        content = read_upload(file, most_megabytes=_MOST_MEGABYTES)
        parts.append(backend.service().inputs.read_times(content, result, name=file.name, level=levels[chosen]))
    return merged(parts) if parts else None


def _choose(run_id: str, result: RunResult, times: LayerTimes) -> TimeGoal | None:
    least, untouched = (1000 * seconds for seconds in time_range(result, times))
    st.caption(f"{untouched:.3g} ms as it is, {least:.3g} ms at least: {times.source}.")
    if least >= untouched:
        st.warning("Compressing layers saves no time here.", icon=":material/warning:")
        return None
    step = 10.0 ** math.floor(math.log10((untouched - least) / 20))
    first, last = math.ceil(least / step) * step, math.floor(untouched / step) * step
    key = f"schedule.ms.{run_id}"
    if key in st.session_state:
        st.session_state[key] = min(last, max(first, st.session_state[key]))
    milliseconds = st.slider(
        "Milliseconds of a call, at most",
        first,
        last,
        step=step,
        format=f"%.{max(0, -math.floor(math.log10(step)))}f ms",
        **bound(run_id, "ms", number(first, last), round((first + last) / 2 / step) * step, key=key),
        help="Predicted from the times of layers. The Deploy step measures the file.",
    )
    return TimeGoal(times=times, most_seconds=milliseconds / 1000)
