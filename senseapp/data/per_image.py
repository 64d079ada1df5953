"""Rows for each image, pixels and targets alike: allocation, draws, copies and digests."""

import mmap
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
import torch

from senseapp.core.errors import InvalidDataset
from senseapp.core.texts import plural
from senseapp.tasks.annotations import PerImage

_MAPPINGS: WeakValueDictionary[int, mmap.mmap] = WeakValueDictionary()  # by address, of rows that lie in a file


def allocate_rows(
    count: int,
    shape: Sequence[int],
    dtype: torch.dtype = torch.uint8,
    *,
    most_in_memory_bytes: int = 128_000_000,
) -> torch.Tensor:
    """Return room for something of each image, (count, ...): in memory, or above a limit in a file that has no name.

    The limit is that of 850 pictures of 224 pixels; the system keeps a file in memory while it has room. The file is
    gone once the tensor is, also when the process is killed. Raises InvalidDataset where the disk has too little room.
    """
    needed = count * int(np.prod(shape)) * dtype.itemsize
    if needed <= most_in_memory_bytes:
        return torch.empty((count, *shape), dtype=dtype)
    free = shutil.disk_usage(tempfile.gettempdir()).free
    if needed > free // 2:  # leave half to others
        raise InvalidDataset(
            f"{plural(count, 'picture')} need {needed / 1e9:.1f} GB of temporary disk space and there are "
            f"{free / 1e9:.1f} GB. Measure on fewer samples."
        )
    with tempfile.TemporaryFile() as file:
        file.truncate(needed)
        mapping = mmap.mmap(file.fileno(), needed)
    rows = torch.from_numpy(np.frombuffer(mapping, dtype=np.uint8))
    _MAPPINGS[rows.data_ptr()] = mapping
    return rows.view(dtype).view(count, *shape)


def leave_on_disk(rows: torch.Tensor) -> None:
    """Release what this process has mapped of rows that lie in a file; the system keeps them while it has room.

    What was read of a file counts as memory of the process until then. Rows in memory stay.
    """
    mapping = _MAPPINGS.get(rows.untyped_storage().data_ptr())
    if mapping is not None and hasattr(mmap, "MADV_DONTNEED"):
        mapping.madvise(mmap.MADV_DONTNEED)


def chosen_of(values: PerImage, indices: Sequence[int]) -> PerImage:
    """Return the rows of the images at ``indices``, in that order; large ones are stored on disk."""
    if not isinstance(values, torch.Tensor):
        return tuple(values[index] for index in indices)
    index = torch.as_tensor(list(indices), dtype=torch.long)
    if values.device.type != "cpu":
        return values[index]
    return torch.index_select(values, 0, index, out=allocate_rows(len(index), values.shape[1:], values.dtype))


def bytes_of(value: Any) -> Iterator[memoryview]:
    """Yield bytes that differ wherever ``value`` does: tensors, arrays, numbers, texts, and what holds them.

    Raises TypeError where it holds something else.
    """
    if isinstance(value, torch.Tensor):
        flat = value.detach().cpu().contiguous().reshape(-1)
        if flat.numel() == 1:
            flat = flat.clone(memory_format=torch.contiguous_format)  # any stride counts as contiguous there
        if flat.numel():
            yield flat.view(torch.uint8).numpy().data
    elif isinstance(value, np.ndarray):
        yield _text(f"{value.dtype} {value.shape}")
        yield np.ascontiguousarray(value).reshape(-1).view(np.uint8).data
    elif isinstance(value, Mapping):
        for name in sorted(value):
            yield _text(f"{name} ")
            yield from bytes_of(value[name])
    elif is_dataclass(value):
        for each in fields(value):
            yield _text(f"{each.name} ")
            yield from bytes_of(getattr(value, each.name))
    elif isinstance(value, (tuple, list)):
        yield _text(f"{len(value)} ")
        for item in value:
            yield _text(f"{getattr(item, 'shape', '')}")
            yield from bytes_of(item)
    elif value is None or isinstance(value, (bool, int, float, str, bytes, np.generic)):
        yield _text(f"{value!r} ")
    else:
        raise TypeError(f"An annotation holds a {type(value).__name__}, which has no bytes to compare.")


def _text(text: str) -> memoryview:
    return memoryview(text.encode())
