"""Downloading an image set: in a thread of its own, told in sentences, once for all who wait."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from pathlib import Path
from urllib.parse import urlsplit

from senseapp.data.image_sets import OPENINGS
from senseapp.downloads import download_progress, image_set_folder, is_downloaded, new_partial_folder
from senseapp.errors import InvalidDataset, first_line_of
from senseapp.models.published import is_reachable
from senseapp.spec import IMAGE_SETS

_POLL_SECONDS = 0.5
_STALLED_SECONDS = 60.0
_ARCHIVES = ("*.tgz", "*.tar.gz", "*.gz", "*.zip")  # not needed once they are unpacked
_downloads: dict[str, Future[None]] = {}
_starting = threading.Lock()


def fetch_image_set(name: str, report: Callable[[str], None]) -> Path:
    """Return the folder of an image set; the first time this downloads it and blocks.

    Args:
        name: one of :data:`IMAGE_SETS`.
        report: told how far the download is, in one sentence, every half second. If it raises, the wait ends; the
            download goes on, so that the next who asks finds more of it.

    Raises:
        InvalidDataset: it could not be downloaded; the sentence offers what works without a network.
    """
    if not is_downloaded(name):
        _wait_for(name, _download_of(name), report)
    return image_set_folder(name)


def _wait_for(name: str, download: Future[None], report: Callable[[str], None]) -> None:
    told, since = "", time.monotonic()
    while not download.done():
        sentence = download_progress(name)
        if sentence != told:
            told, since = sentence, time.monotonic()
        elif sentence.startswith("Downloading") and time.monotonic() - since > _STALLED_SECONDS:
            raise _unavailable(name, f"nothing came for {_STALLED_SECONDS:.0f} seconds")
        report(sentence)
        wait([download], timeout=_POLL_SECONDS)
    download.result()


def _download_of(name: str) -> Future[None]:
    """Return the download that is under way, or start one."""
    with _starting:
        known = _downloads.get(name)
        if known is None or known.done():
            known = _downloads[name] = Future()
            threading.Thread(target=_settle, args=(name, known), name=f"download-{name}", daemon=True).start()
        return known


def _settle(name: str, download: Future[None]) -> None:
    try:
        _download(name)
    except InvalidDataset as error:
        download.set_exception(error)
    except Exception as error:  # whatever torchvision, the network, the disk or a damaged archive ran into
        refusal = _unavailable(name, first_line_of(error))
        refusal.__cause__ = error
        download.set_exception(refusal)
    else:
        download.set_result(None)


def _download(name: str) -> None:
    if is_downloaded(name):  # by another thread, between question and start
        return
    opening = OPENINGS[name]
    if not is_reachable(opening.address()):
        raise _unavailable(name, f"{urlsplit(opening.address()).hostname} cannot be reached")
    partial = new_partial_folder(name)
    try:
        opening.open(partial, True)
        for archive in (path for pattern in _ARCHIVES for path in partial.rglob(pattern)):
            archive.unlink(missing_ok=True)
        if not is_downloaded(name):  # by another process, in the meantime
            partial.rename(image_set_folder(name))
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _unavailable(name: str, reason: str) -> InvalidDataset:
    return InvalidDataset(
        f"{IMAGE_SETS[name].title} could not be downloaded ({reason}), and it is not on this machine. Bring a folder "
        "or archive of images, take the demo, or measure on random inputs: these need no network."
    )
