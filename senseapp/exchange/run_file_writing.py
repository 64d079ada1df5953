"""Writing a finished run as one file."""

from __future__ import annotations

import importlib.metadata
import zipfile
from typing import BinaryIO

from senseapp.exchange.run_file import HEAD_NAME, RESULT_NAME, RunFileHead, extra_files
from senseapp.spec import dumps
from senseapp.store import RunFolder, storage_errors


def write_run_file(folder: RunFolder, title: str, stream: BinaryIO) -> None:
    """Write the finished run in ``folder``; where its files lay on this server is left out.

    Raises:
        NotFound: the run is not finished.
        InvalidFile: its files are damaged.
        StorageFailed: they cannot be read, or there is no room to write.
    """
    result = folder.load_result()
    carried = result.without_folders()
    head = RunFileHead(title=title, written_by=_version())
    with storage_errors("the run file"), zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(HEAD_NAME, dumps(head))
        archive.writestr(RESULT_NAME, dumps(carried))
        for path in extra_files(folder.path):
            packing = zipfile.ZIP_DEFLATED if path.suffix == ".json" else zipfile.ZIP_STORED  # weights do not shrink
            archive.write(path, path.name, packing)


def _version() -> str:
    try:
        return importlib.metadata.version("senseapp")
    except importlib.metadata.PackageNotFoundError:  # run from its folder
        return ""
