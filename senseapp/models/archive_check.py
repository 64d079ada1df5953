"""Whether a zip archive is one that ``torch.save`` wrote, before any of it is unpacked."""

from __future__ import annotations

import zipfile
from pathlib import Path

from senseapp.errors import InvalidCheckpoint
from senseapp.models.pickle_check import BoundedReader, check_globals, globals_in
from senseapp.models.weights_file import RESAVE_ADVICE, damaged

_MAX_ENTRIES = 200_000


def check_archive(path: Path) -> None:
    """Require the archive at ``path`` to hold plain weights, uncompressed, in no more bytes than the file has.

    Raises:
        InvalidCheckpoint: truncated, TorchScript, another program's archive, a decompression bomb, or with code.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            entries = archive.infolist()
            names_in_archive = [entry.filename for entry in entries[: _MAX_ENTRIES + 1]]
            _refuse_torchscript(path, names_in_archive)
            _check_sizes(path, entries)
            pickle_name = _find_pickle(path, names_in_archive)
            with archive.open(pickle_name) as file:
                names = globals_in(BoundedReader(file))
    except InvalidCheckpoint:
        raise
    except (zipfile.BadZipFile, ValueError, EOFError, OSError, NotImplementedError, RuntimeError) as error:
        raise damaged(path, str(error)) from error
    check_globals(names, file_name=path.name)


def _check_sizes(path: Path, entries: list[zipfile.ZipInfo]) -> None:
    if len(entries) > _MAX_ENTRIES:
        raise InvalidCheckpoint(
            f"{path.name} holds {len(entries):,} entries; a checkpoint has at most {_MAX_ENTRIES:,}. {RESAVE_ADVICE}"
        )
    compressed = any(entry.compress_type != zipfile.ZIP_STORED for entry in entries)
    if compressed or sum(entry.file_size for entry in entries) > path.stat().st_size:
        raise InvalidCheckpoint(
            f"{path.name} is a compressed archive, or its entries overlap; torch.save writes neither. "
            "If it is a zip around a checkpoint, unpack it and choose the file inside. " + RESAVE_ADVICE
        )


def _refuse_torchscript(path: Path, names: list[str]) -> None:
    parts = [name.split("/") for name in names]
    if any(len(part) > 1 and part[1] in ("constants.pkl", "code") for part in parts):
        raise InvalidCheckpoint(
            f"{path.name} is a TorchScript archive, a program rather than weights. Save its weights instead: "
            f"torch.save(torch.jit.load('{path.name}').state_dict(), 'weights.pth')."
        )


def _find_pickle(path: Path, names: list[str]) -> str:
    pickles = [name for name in names if name.count("/") == 1 and name.endswith("/data.pkl")]
    if len(set(names)) != len(names) or len(pickles) != 1:
        raise InvalidCheckpoint(f"{path.name} is a zip archive that torch.save did not write. {RESAVE_ADVICE}")
    return pickles[0]
