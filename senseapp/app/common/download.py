"""Deferred download (factory, owner, expiry), and the buttons that hand out the files of a run."""

import shutil
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import streamlit as st

from senseapp.app.common import backend
from senseapp.app.common.notices import show_notes
from senseapp.app.common.state import RUN_PARAMETER, session
from senseapp.compat.streamlit_internals import browser_key, session_id
from senseapp.core.errors import SenseError
from senseapp.core.files import home, storage_errors
from senseapp.records.candidate import Candidate, file_name
from senseapp.records.deployment import small_form
from senseapp.views.words import format as fmt

_FOLDER = "tmp"


@dataclass(frozen=True, slots=True, kw_only=True)
class Download:
    """A file for one page of one browser, and for one person on a server with login.

    Attributes:
        make: returns its content, or where it lies; called in a thread that knows no visitor.
        is_temporary: whether the folder of the file that ``make`` returns goes once the file was fetched.
        session, browser, owner: of the visitor.
        check: raises NotFound once the visitor may not see the runs of the page any more: a link was taken back, or a
            run deleted.
    """

    make: Callable[[], str | bytes | Path]
    is_temporary: bool
    session: str
    browser: bytes
    owner: str
    check: Callable[[], object] = tuple

    def __call__(self) -> str | bytes | BinaryIO:
        """Return the content as Streamlit takes it, on a server without :class:`Downloads`."""
        self.check()
        made = self.make()
        return made.open("rb") if isinstance(made, Path) else made


def download(make: Callable[[], str | bytes | Path], *, is_temporary: bool = False) -> Download:
    """Return the content of a download button for this visitor; see :class:`Download`."""
    shown = {run for run in (*st.query_params.get_all(RUN_PARAMETER), session().last_run) if run}
    owned, seen = backend.service(), []
    for run in shown:
        with suppress(SenseError):  # the last one may be gone, where the page is of others
            owned.run(run)
            seen.append(run)
    return Download(
        make=make,
        is_temporary=is_temporary,
        session=session_id(),
        browser=browser_key(st.context.cookies),
        owner=backend.visitor().owner,
        check=lambda: [owned.run(run) for run in seen],
    )


def new_file() -> Path:
    """Return the path of a new file in a temporary folder of its own; raises StorageFailed if the disk refuses."""
    parent = home() / _FOLDER
    with storage_errors(f"the folder {_FOLDER}"):
        parent.mkdir(exist_ok=True)
        return Path(tempfile.mkdtemp(dir=parent)) / "file"


def remove_new_files() -> None:
    """Remove what a server that ended has left of new files."""
    shutil.rmtree(home() / _FOLDER, ignore_errors=True)


def offer_file(
    label: str, make: Callable[[], str | bytes | Path], file_name: str, *, is_temporary: bool = False, **look: Any
) -> None:
    """Show the button that downloads what ``make`` returns; ``look`` are further arguments of Streamlit's button."""
    look = {"icon": ":material/download:", "on_click": "ignore"} | look
    st.download_button(label, download(make, is_temporary=is_temporary), file_name=file_name, **look)


def file_button(run_id: str, candidate: Candidate, *, primary: bool = False, key: str = "recommendation.get") -> None:
    """Show the button that downloads the file of ``candidate``; a sentence where only its figures are here."""
    owned = backend.service()
    try:
        owned.work.candidate_file(run_id, candidate)
    except SenseError as error:
        show_notes([error])
        return
    what = f"file that runs ({candidate.suffix})" if primary and candidate.runs else candidate.made_of
    offer_file(
        f"Get the {what}, {fmt.bytes_size(candidate.figures.file_bytes)}",
        partial(owned.work.candidate_file, run_id, candidate),
        _name(run_id, candidate),
        key=f"{key}.{run_id}",
        type="primary" if primary else "secondary",
        help=f"{candidate.headline}. {'It holds the whole network. ' * candidate.runs}Opened by {candidate.opened_by}.",
    )


def _name(run_id: str, candidate: Candidate) -> str:
    return file_name(backend.service().run(run_id).spec.model, candidate)


def other_files(run_id: str, candidates: Sequence[Candidate], chosen: Candidate | None) -> None:
    """Show the buttons to the files beside the chosen one, to its kit, and what reads packed weights."""
    owned = backend.service()
    with st.container(horizontal=True, gap="small"):
        if chosen is not None and chosen.runs and chosen.runtime.is_installed:
            offer_file(
                "Everything to run it (zip)",
                lambda: owned.work.pack_kit(run_id, chosen, new_file()),
                f"{_name(run_id, chosen).removesuffix(chosen.suffix)}-kit.zip",
                is_temporary=True,
                key=f"recommendation.kit.{run_id}",
                icon=":material/folder_zip:",
                help="The recommended file, how a picture is prepared, and how it is run.",
            )
        mixed = [each for each in candidates if each.form == "mixed" and each.runtime.is_installed]
        if mixed and mixed[0].runtime.converters:
            offer_file(
                "Recipe for your converter (zip)",
                lambda: owned.work.pack_recipes(run_id, mixed[0], new_file()),
                f"{_name(run_id, mixed[0]).removesuffix(mixed[0].suffix)}-recipe.zip",
                is_temporary=True,
                key=f"recommendation.recipe.{run_id}",
                icon=":material/receipt_long:",
                help=f"Which parts stay in full precision in “{mixed[0].made_of}”, as settings of "
                f"{mixed[0].runtime.converters}.",
            )
        for place, each in enumerate(candidates):
            if chosen is None or each.file != chosen.file:
                file_button(run_id, each, key=f"recommendation.other.{place}")
    for each in candidates:
        if (small := small_form(each.file)) is not None:
            with st.popover("Open compact weights in Python"):
                st.code(small.reader(_name(run_id, each)), language=None, wrap_lines=True)
