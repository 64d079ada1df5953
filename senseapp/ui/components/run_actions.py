"""What the owner of a run can do with it on the Runs page: share, rename, download, delete."""

from __future__ import annotations

import io
from collections.abc import Callable
from urllib.parse import urlencode, urljoin

import streamlit as st

from senseapp.exchange import RUN_FILE_SUFFIX
from senseapp.results import RunRecord, RunState
from senseapp.ui import backend
from senseapp.ui import format as fmt
from senseapp.ui.components.notices import errors_here
from senseapp.ui.identity import visitor
from senseapp.ui.state import RUN_PARAMETER, remember_run, session


def share_run(record: RunRecord) -> None:
    """Show the link of a shared run and how to take it back, or how to make one."""
    if not record.shared:
        st.markdown("Whoever has the link can look at this run, and change nothing. Nobody finds it otherwise.")
        if st.button("Make a link", key=f"runs.share.{record.run_id}", icon=":material/link:"):
            _share(record, shared=True)
        return
    st.markdown("Whoever has this link can look at the run:")
    st.code(_address(record.link), language=None, wrap_lines=True)
    if st.button("Take the link back", key=f"runs.unshare.{record.run_id}", icon=":material/link_off:"):
        _share(record, shared=False)


def _share(record: RunRecord, *, shared: bool) -> None:
    with errors_here():
        came = visitor()
        if came.name:
            backend.service().introduce(came.name)
        backend.service().share(record.run_id, shared=shared)
        st.rerun()


def _address(link: str) -> str:
    return urljoin(st.context.url or "/", f"results?{urlencode({RUN_PARAMETER: link})}")


def keep_run(record: RunRecord) -> None:
    """Show a field for another title, and the run as one file."""
    with st.form(f"runs.rename.{record.run_id}", border=False):
        title = st.text_input(
            "Title", value=record.title, key=f"runs.title.{record.run_id}", help="What you call this run."
        )
        if st.form_submit_button("Save", key=f"runs.save.{record.run_id}"):
            with errors_here():
                backend.service().rename(record.run_id, title)
                st.rerun()
    if record.state is RunState.DONE:
        st.download_button(
            f"Download run ({fmt.bytes_size(record.num_bytes)} here)",
            _packer(record.run_id),
            file_name=f"run-{record.run_id[:8]}{RUN_FILE_SUFFIX}",
            mime="application/zip",
            key=f"runs.download.{record.run_id}",
            icon=":material/download:",
            on_click="ignore",
            help="Everything about this run in one file that another senseapp imports. Model and images stay here.",
        )


def _packer(run_id: str) -> Callable[[], bytes]:
    """Return what packs the run once it is asked for, in a thread that knows no visitor: whose it is, is known here."""
    owned = backend.service()

    def pack() -> bytes:
        stream = io.BytesIO()
        owned.pack(run_id, stream)
        return stream.getvalue()

    return pack


def delete_run(record: RunRecord) -> None:
    """Ask once more, then delete the run with its files."""
    st.markdown(f"The run and all its files ({fmt.bytes_size(record.num_bytes)}) are removed for good.")
    if st.button("Delete for good", key=f"runs.delete.{record.run_id}", type="primary"):
        with errors_here():
            backend.service().delete(record.run_id)
            if session().last_run == record.run_id:
                remember_run("")
            st.rerun()
