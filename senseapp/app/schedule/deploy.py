"""The file that a runtime runs, on the Schedule page: how it is made, what was measured of it, and its downloads."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import streamlit as st

from senseapp.app.common import backend
from senseapp.app.common.address import bound, number, one_of, whole
from senseapp.app.common.download import download, new_file
from senseapp.app.common.jobs import begin, start_label
from senseapp.app.common.notices import errors_here
from senseapp.app.common.tables import show_table
from senseapp.app.frames.deployment import deployment_frame, shown_metrics
from senseapp.app.schedule.proof import choose_adapting
from senseapp.app.words import format as fmt
from senseapp.metrics import METRICS
from senseapp.records.deployment import DeployKind, Deployment, DeploySettings
from senseapp.records.measurement import SensitivityResult
from senseapp.records.schedule import Schedule
from senseapp.runs.schedule_tasks import DeployTask

_KINDS: dict[DeployKind, str] = {
    "quickest": "As quick as possible",
    "mixed": "Int8 within a time",
    "int8": "All int8",
    "float": "Float",
}
_KIND_HELP = (
    "**Int8** computes with whole numbers of 8 bits: a quarter of the size, and on most processors quicker. A few "
    "layers may bear it badly; they are found by measurement and stay in **float**: as few as a limit on changed "
    "answers takes (**as quick as possible**), or as many as a limit on the time allows. "
    "What the schedule zeroes or removes is gone from each of these files."
)
_NAME = "model.onnx"
_MOST_IMAGES = 64


def deploy_block(
    schedule: Schedule, result: SensitivityResult, run_id: str, *, partner: SensitivityResult | None = None
) -> None:
    """Show what was measured of the file that runs ``schedule``, how far it is, or the button that makes it.

    ``partner`` holds the results of the second run, where the schedule was made from two.
    """
    with st.container(border=True):
        st.markdown("## Deploy: a file that runs")
        other = partner.spec.sensitivity.compression if partner is not None else None
        settings = _choose(run_id, result, adapts=any(entry.compression != "none" for entry in schedule.entries))
        task = DeployTask(run_id=run_id, schedule=schedule, settings=settings, other=other)
        with errors_here():
            record = backend.service().work.outcome(task)
            if record is not None:
                _measured(record, run_id)
                _downloads(task)
            elif label := start_label(task, "Make the file and measure it", "this file", cancel="schedule.deploy_stop"):
                st.markdown(
                    "The network becomes one ONNX file, which onnxruntime runs on phones, servers and in browsers. "
                    "Before you take it, it runs here beside the original, on images that nothing was made from where "
                    "there are enough: what it answers, how long it takes, how large it is."
                )
                if st.button(label, key=f"schedule.deploy.{run_id}", icon=":material/rocket_launch:"):
                    begin(task)


def _choose(run_id: str, result: SensitivityResult, *, adapts: bool) -> DeploySettings:
    chosen = st.segmented_control(
        "How it computes",
        list(_KINDS),
        required=True,
        format_func=_KINDS.__getitem__,
        **bound(run_id, "form", one_of(_KINDS), "quickest", key=f"schedule.deploy_kind.{run_id}"),
        help=_KIND_HELP,
    )
    usual = DeploySettings()
    changed = (
        st.slider(
            "Answers that may change",
            0.0,
            10.0,
            step=0.5,
            format="at most %.1f %%",
            **bound(
                run_id, "changed", number(0, 10), 100 * usual.most_changed, key=f"schedule.deploy_changed.{run_id}"
            ),
            help="Of the answers that the original gives, right or wrong. The file is as quick as it gets within this "
            "limit on images that choose what stays in float, and is then measured on others.",
        )
        if chosen == "quickest"
        else 100 * usual.most_changed
    )
    with st.popover("How it is timed", icon=":material/timer:", type="tertiary"):
        cores = os.cpu_count() or 1
        threads = st.number_input(
            "Threads", 1, cores, **bound(run_id, "threads", whole(1, cores), 1, key=f"schedule.deploy_threads.{run_id}")
        )
        batch = st.number_input(
            "Images in one call",
            1,
            _MOST_IMAGES,
            **bound(run_id, "batch", whole(1, _MOST_IMAGES), 1, key=f"schedule.deploy_batch.{run_id}"),
        )
        most = st.number_input(
            "Longest time, as a multiple of all-int8's",
            1.0,
            10.0,
            step=0.1,
            format="%.1f",
            disabled=chosen != "mixed",
            **bound(run_id, "most_time", number(1, 10), usual.most_time, key=f"schedule.deploy_time.{run_id}"),
            help="How much slower layers in float may make the file.",
        )
    return DeploySettings(
        kind=chosen,
        most_changed=changed / 100,
        most_time=most if chosen == "mixed" else usual.most_time,
        threads=threads,
        batch=batch,
        adapting=choose_adapting(run_id, result, name="deploy_adapt", label="Adapt weights of the file")
        if adapts
        else "off",
    )


def _measured(record: Deployment, run_id: str) -> None:
    does, *against = record.findings
    if against:
        st.warning("\n\n".join(record.findings), icon=":material/warning:")
    else:
        st.success(does, icon=":material/check_circle:")
    rows = deployment_frame(record)
    show_table(
        rows, _columns(record), alt_text="; ".join(rows.agg(", ".join, axis=1)), key=f"schedule.deployed.{run_id}"
    )
    settings = record.settings
    st.caption(
        f"**Measured** in onnxruntime on {fmt.plural(record.images, 'image')}, with 95 % intervals. Times are of "
        f"{fmt.plural(settings.batch, 'image')} a call on {fmt.plural(settings.threads, 'thread')} of this machine "
        f"({record.machine}), all files in turns; on another processor they differ."
    )
    if record.in_float:
        layers = fmt.plural(len(record.in_float), "part")
        st.markdown(
            f"**In float, where int8 was measured to do harm** ({layers}): {', '.join(map(_code, record.in_float))}"
        )
    for note in record.notes:
        st.caption(f":material/info: {note}")


def _code(name: str) -> str:
    return f"`{name}`"


def _columns(record: Deployment) -> dict[str, Any]:
    columns: dict[str, Any] = {"file": st.column_config.TextColumn("File", pinned=True, width=140)}
    for name in shown_metrics(record):
        metric = METRICS[name]
        head = f"{metric.label} ({metric.value_unit})" if metric.value_unit else metric.label
        columns[name] = st.column_config.TextColumn(head, help=metric.help, width=150)
    return columns | {
        "time": st.column_config.TextColumn("ms a call", help="Median, with its 95 % interval.", width=150),
        "share": st.column_config.TextColumn(
            "% of the time", help="Of the original's: median of the ratios, call by call.", width=100
        ),
        "size": st.column_config.TextColumn("Size", help="On disk.", width=70),
    }


def _downloads(task: DeployTask) -> None:
    owned = backend.service()  # whose it is can be asked here, and not in the thread that makes the file
    path = owned.work.deployed(task)

    def packed() -> Path:
        return owned.work.pack_deployed(task, _NAME, new_file())

    row = st.container(horizontal=True)
    row.download_button(
        f"Download {_NAME} ({fmt.bytes_size(path.stat().st_size)})",
        download(lambda: owned.work.deployed(task)),
        file_name=_NAME,
        mime="application/octet-stream",
        key=f"schedule.deployed_file.{task.run_id}",
        icon=":material/download:",
        on_click="ignore",
    )
    row.download_button(
        "With how to use it (zip)",
        download(packed, is_temporary=True),
        file_name="model.zip",
        mime="application/zip",
        key=f"schedule.deployed_zip.{task.run_id}",
        icon=":material/folder_zip:",
        on_click="ignore",
    )
