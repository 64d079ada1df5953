"""Read what a checkpoint file holds, without running anything from it."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from senseapp.errors import InvalidCheckpoint, first_line_of
from senseapp.models.archive_check import check_archive
from senseapp.models.pickle_check import INERT_NAMES, BoundedReader, Inert, check_globals, globals_in
from senseapp.models.weights_file import RESAVE_ADVICE, FileKind, damaged, kind_of

_LEGACY_MAGIC = b"\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19."  # torch.save's number, pickled, after the protocol bytes
_LEGACY_PICKLES = 5  # magic number, protocol, byte order, the object, the keys of its storages
_MAX_BYTES_PER_FILE_BYTE = 4  # tied weights share bytes; an expanded tensor claims far more than it has
_ALLOW_LIST_LOCK = threading.Lock()  # torch's allow-list is one per process


def read_payload(path: Path) -> Mapping[Any, Any]:
    """Return the object in the file, with its tensors mapped from disk where the form allows.

    Raises:
        InvalidCheckpoint: unreadable, damaged, with code, or not a dict.
    """
    kind = kind_of(path)
    if kind is FileKind.SAFETENSORS:
        return _read_safetensors(path)
    if kind is FileKind.ZIP:
        check_archive(path)
    else:
        _check_legacy(path)
    payload = _load_plain(path, mapped=kind is FileKind.ZIP)
    if not isinstance(payload, Mapping):
        raise InvalidCheckpoint(
            f"{path.name} holds a {type(payload).__name__}, not a dict of weights by layer name. {RESAVE_ADVICE}"
        )
    _check_claimed_bytes(path, payload)
    return payload


def _read_safetensors(path: Path) -> dict[str, Tensor]:
    try:
        with safe_open(str(path), framework="pt", device="cpu") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (not a mapping)
    except (SafetensorError, ValueError, RuntimeError, OSError, KeyError, AttributeError, TypeError) as error:
        raise damaged(path, first_line_of(error, most=160)) from error


def _check_legacy(path: Path) -> None:
    """Look through the pickles that come before the weights in torch's older form."""
    names: set[str] = set()
    with path.open("rb") as file:
        if file.read(2 + len(_LEGACY_MAGIC))[2:] != _LEGACY_MAGIC:
            raise _plain_pickle(path)
        file.seek(0)
        bounded = BoundedReader(file)
        try:
            for _ in range(_LEGACY_PICKLES):
                names |= globals_in(bounded)
        except (ValueError, EOFError, OverflowError, MemoryError) as error:
            raise damaged(path, first_line_of(error, most=160)) from error
        finally:
            check_globals(names, file_name=path.name)


def _plain_pickle(path: Path) -> InvalidCheckpoint:
    """Return the error for a pickle that torch.save did not write; it names the first class, where there is one."""
    try:
        with path.open("rb") as file:
            names = sorted(globals_in(BoundedReader(file)))
    except (ValueError, EOFError, OverflowError, MemoryError) as error:
        return damaged(path, first_line_of(error, most=160))
    holds = f" with {names[0]} in it" if names else ""
    return InvalidCheckpoint(
        f"{path.name} is a Python pickle{holds}, not a checkpoint. Loading it could run code from the file, "
        f"so it was not opened. {RESAVE_ADVICE}"
    )


@contextmanager
def _harmless_records_allowed() -> Iterator[None]:
    from argparse import Namespace

    inert: list[Any] = [(Inert, name) for name in sorted(INERT_NAMES)]
    with _ALLOW_LIST_LOCK, torch.serialization.safe_globals([Namespace, *inert]):
        yield


def _load_plain(path: Path, *, mapped: bool) -> object:
    try:
        with _harmless_records_allowed():
            payload: object = torch.load(str(path), map_location="cpu", weights_only=True, mmap=mapped)
    # A malformed pickle can make the unpickler call an allowed function with any arguments, so that any
    # exception may come out; each means the same to the person who chose the file.
    except Exception as error:
        raise damaged(path, first_line_of(error, most=160)) from error
    return payload


def _check_claimed_bytes(path: Path, payload: Mapping[Any, Any]) -> None:
    """Refuse tensors that claim more numbers than the file has bytes for (a size with a stride of zero)."""
    claimed = sum(tensor.numel() * tensor.element_size() for tensor in _tensors(payload, depth=4))
    if claimed > _MAX_BYTES_PER_FILE_BYTE * path.stat().st_size:
        raise damaged(path, f"its tensors claim {claimed:,} bytes, far more than the file has")


def _tensors(value: object, *, depth: int) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping) and depth > 0:
        for item in value.values():
            yield from _tensors(item, depth=depth - 1)
