"""The sidebar, logging in and out, links of runs, and the state of the server in figures."""

import platform
import shutil
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from urllib.parse import urlencode, urljoin, urlsplit

import psutil
import segno
import streamlit as st

from senseapp import __version__
from senseapp.app.common import backend
from senseapp.app.common.address import address_of
from senseapp.app.common.backend import login_providers, visitor
from senseapp.app.common.expert import expert_switch
from senseapp.app.common.notices import complain, errors_here, run_script
from senseapp.app.common.state import RUN_PARAMETER, session
from senseapp.app.common.tables import figures_row, text_table
from senseapp.app.logins import logouts
from senseapp.core.errors import SenseError
from senseapp.core.files import bytes_in, home
from senseapp.core.markdown import md
from senseapp.records.jobs import RunRecord
from senseapp.server.machine import num_processors
from senseapp.server.operations import SystemReport, disk_problems, existing_folder
from senseapp.views.words import format as fmt

_PACKAGES = ("streamlit", "torch", "torchvision", "timm", "torch-pruning", "numpy", "pandas", "altair")


@st.fragment(run_every=5.0)
def system_panel() -> None:
    """Show the state of the server every few seconds anew; also where the home cannot be used."""
    try:
        report = backend.service().system()
    except SenseError as error:
        report = SystemReport(home=home(), problems=(str(error), *disk_problems(home())))
    for problem in report.problems:
        complain(problem)
    for title, figures in _figures(report).items():
        st.header(title, anchor=False)
        figures_row(figures, helps=_SYSTEM_HELPS, key=f"system.{title.lower()}")
    st.header("Versions", anchor=False)
    st.caption(f"Python {platform.python_version()} on {platform.system()} {platform.release()} ({platform.machine()})")
    alt_text = "Versions of the packages that the figures depend on"
    versions = [("senseapp", __version__), *((name, version(name)) for name in _PACKAGES)]
    text_table(("Package", "Version"), versions, alt_text=alt_text, key="system.versions")


def _figures(report: SystemReport) -> dict[str, dict[str, str]]:
    """Return the state of server and machine in words, by title and label; takes milliseconds, never loads torch."""
    size, settings, torch = fmt.bytes_size, report.settings, sys.modules.get("torch")
    process, memory, disk = psutil.Process(), psutil.virtual_memory(), shutil.disk_usage(existing_folder(report.home))
    jobs, device = memory_of(report.job_pids), "not known yet: the engine is being loaded"
    if not hasattr(torch, "cuda"):
        torch = None  # not loaded yet
    elif torch is not None:
        found = torch.cuda.is_available()
        device = torch.cuda.get_device_name() if found else "processor (no accelerator found)"
    return {
        "Work": {
            "Running": f"{report.running} of {settings.workers + settings.short_workers * settings.job_processes}",
            "Waiting": f"{report.waiting} of {settings.max_queue}",
            "Up for": fmt.duration(time.time() - process.create_time()),
        },
        "Machine": {
            "Models run on": device,
            "Cores": str(num_processors()),
            "Threads": str(threading.active_count()),
            "Threads of the engine": "–" if torch is None else str(torch.get_num_threads()),
            "Memory of the server": size(process.memory_info().rss),
            "Memory of runs": size(sum(jobs)) if jobs else "as the server",
            "Free memory": f"{size(memory.available)} of {size(memory.total)}",
        },
        "Disk": {
            "Runs": "not known" if report.runs_bytes is None else size(report.runs_bytes),
            "Uploads": size(bytes_in(report.home / "uploads")),
            "Logs": size(bytes_in(report.home / "logs")),
            "Free": f"{size(disk.free)} of {size(disk.total)}",
        },
    }


def memory_of(pids: Sequence[int]) -> list[int]:
    """Return the bytes of memory of those processes that run."""
    found = []
    for pid in pids:
        with suppress(psutil.Error):  # it has ended
            found.append(psutil.Process(pid).memory_info().rss)
    return found


_SYSTEM_HELPS = {
    "Running": "Runs, proofs and other jobs of everybody on this server, and how many may run at once.",
    "Waiting": "Jobs in the queue, and how many it takes.",
    "Memory of runs": "Of the processes that measure, where they are not the one that makes the pages.",
}


def link_of(record: RunRecord, settings: Mapping[str, str] | None = None, *, base: str = "") -> str:
    """Return the address of a run's results: its shared link where there is one.

    ``settings`` of its views, by their names in the address, are part of it. Where the address of this server is not
    known, it begins with ``base``, and without one it is empty.
    """
    seen, query = st.context.url or base, {RUN_PARAMETER: record.link or record.run_id, **(settings or {})}
    return urljoin(seen, f"results?{urlencode(query)}") if seen else ""


def works_elsewhere(link: str) -> bool:
    """Return whether a link can lead other devices here; one to ``localhost`` leads each to itself."""
    return (urlsplit(link).hostname or "") not in ("localhost", "127.0.0.1", "::1")


def qr_code(link: str) -> str:
    """Return the QR code of a link as SVG, black on white whatever the theme is."""
    white = 4  # modules around the code, as ISO/IEC 18004 asks for
    found: str = segno.make(link, micro=False).svg_inline(scale=8, border=white, dark="black", light="white")
    return found


def admit(page: str) -> None:
    """Return if the visitor may see the page at this path; else show the login or the server's error, and stop.

    A visitor who is not logged in may see the pages of a shared run whose link they have.
    """
    came = visitor()
    try:
        problems = backend.service().disk_problems()
    except SenseError as error:  # the home cannot be used: nothing but the System page would work either
        st.title("senseapp cannot work here", anchor=False)
        if page == "system":
            system_panel()
        else:
            complain(str(error))
        st.stop()
    if came.is_known:
        if came.name:
            run_script("come_back")  # the login leads to the first page, wherever somebody came from
        for problem in problems if page != "system" else ():
            complain(problem)
        return
    if page in ("results", "schedule", "present"):
        with suppress(SenseError):
            if backend.service().run(st.query_params.get(RUN_PARAMETER, "")).read_only:
                return
    run_script("remember_place")
    with st.container(horizontal_alignment="center"), st.container(width=520, border=True):
        st.title("Log in", anchor=False)
        st.markdown("Runs and uploads on this server belong to whoever made them. Log in to see yours.")
        for provider in login_providers() or [""]:
            label = f"Log in with {provider.capitalize()}" if provider else "Log in"
            if st.button(label, type="primary", icon=":material/login:", key=f"login.{provider}", width="stretch"):
                st.login(provider or None)
        if st.user.get("is_logged_in"):
            complain(
                "Your login does not say who you are: it lacks an issuer or a subject. Ask whoever runs this server."
            )
    st.stop()


def share_run(record: RunRecord) -> None:
    """Show the link of a shared run and how to take it back, or how to make one."""
    if not record.shared:
        known = "Nobody finds the run without it." if visitor().name else f"This does not protect the run. {_NO_LOGIN}"
        st.markdown(f"{_LOOKS} {known}")
        if st.button("Make a link", key=f"runs.share.{record.run_id}", icon=":material/link:"):
            _share(record, shared=True)
        return
    st.markdown(f"{_LOOKS} It opens the views as you see them now:")
    st.code(link_of(record, session().addressed.get(record.run_id, {}), base="/"), language=None, wrap_lines=True)
    if st.button("Take the link back", key=f"runs.unshare.{record.run_id}", icon=":material/link_off:"):
        _share(record, shared=False)


_LOOKS = (
    "The link opens a view of this run in which nothing can be changed: its results, its schedules, the pictures that "
    "it shows, and the compressed files, which can be downloaded. Files that you uploaded are not among them."
)
_NO_LOGIN = "There is no login here: everybody who opens this server sees all runs, and can change and delete them."


def no_login_line() -> None:
    """Show who can read the runs, on a server without login that others can reach."""
    if not visitor().name:
        st.caption(md(":material/group: {}", _NO_LOGIN))


def _share(record: RunRecord, *, shared: bool) -> None:
    with errors_here():
        came = visitor()
        if came.name:
            backend.service().introduce(came.name)
        backend.service().share(record.run_id, shared=shared)
        st.rerun()


def sidebar(
    menu: Mapping[str, st.Page], foot: Mapping[str, st.Page], *, shown: str, mark: Path, small_mark: Path
) -> None:
    """Show the pages of the ``menu``, by title, and a fold of the ``foot`` with the switch *Expert* and the account.

    ``shown`` is the path of the page that is open: the fold, and a menu that covers the page, close with another.
    """
    run_script("page_opened", beside=f'<div hidden data-page="{shown}"></div>')
    st.logo(mark, size="large", icon_image=small_mark)
    run_id = st.query_params.get(RUN_PARAMETER) or session().last_run
    known, scopes = visitor(), {"Analyze": "analyze", "Results": run_id, "Schedule": run_id}
    with st.sidebar:
        with st.container(gap="xsmall", key="sidebar_menu"):
            for title, page in menu.items():
                query = address_of(scopes[title]) if title in scopes else {}
                st.page_link(page, label=title, query_params=query or None, width="stretch")
        with (
            st.container(key="sidebar_foot"),
            st.popover("Help and account", icon=":material/help:", type="tertiary", key=f"sidebar.fold.{shown}"),
        ):
            for title, page in foot.items():
                if title != "System" or known.is_operator:
                    st.page_link(page, label=title)
            expert_switch()
            if known.name:
                st.caption(md(":material/person: {}", known.name))
                if st.button("Log out", key="account.logout", type="tertiary", icon=":material/logout:"):
                    logouts().end(st.context.cookies)
                    st.logout()
