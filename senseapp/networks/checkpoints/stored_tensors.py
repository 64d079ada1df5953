"""Tensors and arrays as a pickle describes them; their numbers are memory-mapped from the file."""

from __future__ import annotations

import io
import math
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from torch import Tensor

from senseapp.networks.checkpoints.pickled import Builder, Built, BuiltDict, Named, PickleReader

LEGACY_MAGIC = 0x1950A86A20F9469CFC6C
"""First number of torch's older form, as it is pickled."""
_STORAGE_DTYPES = {
    **{"Double": torch.float64, "Float": torch.float32, "Half": torch.float16, "BFloat16": torch.bfloat16},
    **{"Long": torch.int64, "Int": torch.int32, "Short": torch.int16, "Char": torch.int8, "Byte": torch.uint8},
    **{"Bool": torch.bool, "ComplexFloat": torch.complex64, "ComplexDouble": torch.complex128},
    "Untyped": torch.uint8,
}
_DTYPES = {str(value): value for value in vars(torch).values() if isinstance(value, torch.dtype)}
_ARRAY_KINDS = "fiub"
_MOST_COPIES = 4  # copied bytes, as a multiple of the file's bytes
_COPIED_ANYWAY = 1_000_000  # bytes: small files need more than a multiple of their size


@dataclass(slots=True, eq=False)
class Storage(Built):
    """A range of numbers in the file, by its key; ``start`` and ``length`` (in numbers) select a part of it."""

    key: str
    dtype: torch.dtype
    length: int
    start: int = 0


@dataclass(slots=True, eq=False)
class StoredTensor(Built):
    """A tensor as a strided view of a storage."""

    storage: Storage
    dtype: torch.dtype
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def claimed_bytes(self) -> int:
        """Memory of its numbers if none are shared, in bytes."""
        return math.prod(self.shape) * self.dtype.itemsize


@dataclass(slots=True, eq=False)
class OtherTensor(Built):
    """A tensor that is not plain and dense, with the name of its form."""

    form: str
    claimed_bytes: int = 0


class StoredArray:
    """A NumPy array."""

    def __init__(self, *_: object) -> None:
        self._state: tuple[Any, ...] = ()

    def __setstate__(self, state: object) -> None:
        """Set the state ``(version, shape, dtype, is in Fortran order, bytes)``."""
        if isinstance(state, tuple) and len(state) == 5:
            self._state = state

    @property
    def claimed_bytes(self) -> int:
        """Its size in bytes."""
        content = self._state[4] if self._state else None
        return len(content) if isinstance(content, str | bytes | bytearray) else 0

    def tensor(self) -> Tensor | None:
        """Return its numbers; None if it holds other objects.

        Raises:
            ValueError: its shape does not match its bytes.
        """
        if not self._state:
            return None
        _, shape, dtype, is_fortran, content = self._state
        if isinstance(content, str):  # as Python 2 writes bytes
            content = content.encode("latin1")
        numbers = dtype.dtype() if isinstance(dtype, _ArrayType) else None
        if numbers is None or not isinstance(content, bytes | bytearray):
            return None
        lengths = _lengths(shape)
        if math.prod(lengths) * numbers.itemsize != len(content):
            raise ValueError("an array in it has another size than its bytes")
        array = np.frombuffer(content, numbers).reshape(lengths, order="F" if is_fortran else "C")
        return torch.from_numpy(np.array(array, dtype=numbers.newbyteorder("="), order="C"))


class _ArrayType:
    """A NumPy dtype: its name, and the byte order from its state."""

    def __init__(self, name: object = "", *_: object) -> None:
        self._name, self._order = name, "="

    def __setstate__(self, state: object) -> None:
        if isinstance(state, tuple) and len(state) > 1 and state[1] in ("<", ">"):
            self._order = str(state[1])

    def dtype(self) -> np.dtype[Any] | None:
        """Return the dtype of plain numbers; None for objects and records."""
        if not isinstance(self._name, str) or self._name[:1] not in _ARRAY_KINDS or len(self._name) > 3:
            return None
        try:
            return np.dtype(self._name).newbyteorder(self._order)  # type: ignore[arg-type]
        except TypeError:
            return None


def _lengths(shape: object) -> tuple[int, ...]:
    """Return ``shape`` if it is a tuple of non-negative integers."""
    if not isinstance(shape, tuple) or len(shape) > 16:  # video networks have five
        raise ValueError("a tensor in it has no shape")
    if not all(isinstance(length, int) and 0 <= length < 2**63 for length in shape):
        raise ValueError("a tensor in it has no shape")
    return shape


def _tensor(
    storage: object = None, offset: object = 0, shape: object = (), strides: object = (), *rest: object
) -> StoredTensor | OtherTensor:
    if not isinstance(storage, Storage):
        return storage if isinstance(storage, OtherTensor) else OtherTensor("a tensor without numbers")
    dtype = _DTYPES.get(rest[2].name) if len(rest) > 2 and isinstance(rest[2], Named) else storage.dtype
    (whole_offset,) = _lengths((offset,))
    return StoredTensor(storage, dtype or storage.dtype, whole_offset, _lengths(shape), _lengths(strides))


def _of_type(builder: object = None, _: object = None, arguments: object = (), *__: object) -> object:
    """Return the tensor inside an instance of a tensor subclass."""
    found = _TENSORS.get(builder.name) if isinstance(builder, Named) else None
    return found(*arguments[:8]) if found and isinstance(arguments, tuple) else OtherTensor("a tensor of its own class")


def _first(value: object = None, *_: object) -> object:
    return value


def _nothing(*_: object) -> None:
    return None


def _other(form: str) -> Builder:
    return lambda *_: OtherTensor(form)


_TENSORS: dict[str, Builder] = {
    "torch._utils._rebuild_tensor": _tensor,
    "torch._utils._rebuild_tensor_v2": lambda *arguments: _tensor(*arguments[:4]),
    "torch._utils._rebuild_tensor_v3": _tensor,
    "torch._utils._rebuild_parameter": _first,
    "torch._utils._rebuild_parameter_with_state": _first,
    "torch._utils._rebuild_device_tensor_from_numpy": _first,
    "torch._utils._rebuild_device_tensor_from_cpu_tensor": _first,
    "torch._tensor._rebuild_from_type_v2": _of_type,
    "torch.nn.parameter.Parameter": _first,
    "torch.nn.parameter.Buffer": _first,
    "torch._utils._rebuild_qtensor": _other("quantized to integers"),
    "torch._utils._rebuild_sparse_tensor": _other("sparse"),
    "torch._utils._rebuild_nested_tensor": _other("a nested tensor"),
    "torch._utils._rebuild_meta_tensor_no_storage": _other("without its numbers (on the meta device)"),
    "torch._utils._rebuild_wrapper_subclass": _other("of a class of its own, without plain numbers"),
    "torch.Size": _first,
    "torch.device": _nothing,
    "torch.serialization._get_layout": _nothing,
    "numpy.core.multiarray._reconstruct": StoredArray,
    "numpy._core.multiarray._reconstruct": StoredArray,
    "numpy.core.multiarray.scalar": _nothing,
    "numpy._core.multiarray.scalar": _nothing,
    "numpy.dtype": _ArrayType,
}


class TensorFile:
    """The pickles of one file, and the numbers that they refer to.

    Attributes:
        reader: the reader of its pickles.
        spans: first byte and number of bytes of each storage, by key.
    """

    def __init__(self, path: Path) -> None:
        """Neither opens the file nor maps it yet."""
        self._path = path
        self._left = _MOST_COPIES * path.stat().st_size + _COPIED_ANYWAY
        self.spans: dict[str, tuple[int, int]] = {}
        self._mapped: Tensor | None = None
        self._embedded: dict[str, Tensor] = {}
        self._dtypes: dict[str, torch.dtype] = {}
        builders: dict[str, Builder] = {
            **_TENSORS,
            "numpy.core.numeric._frombuffer": self._array,
            "numpy._core.numeric._frombuffer": self._array,
            "_codecs.encode": self._encode,
            "torch.storage._load_from_bytes": self._embed,
            "collections.OrderedDict": self._dict,
            "collections.defaultdict": lambda *_: BuiltDict(),
            "builtins.set": _first,
            "builtins.frozenset": _nothing,  # a list could not be an entry of another set
        }
        self.reader = PickleReader(builders, self._storage)

    def read_legacy(self, file: IO[bytes]) -> object:
        """Return the value in torch's older form: three pickles of header, its own, the keys of storages, their bytes.

        Raises:
            ValueError: the file has another form, or is truncated.
        """
        spans, value = self._legacy_spans(file)
        self.spans |= spans
        return value

    def tensor(self, stored: StoredTensor) -> Tensor:
        """Return the numbers of ``stored``, as a view of the mapped file where its alignment allows.

        Raises:
            ValueError: the tensor exceeds its storage, or its storage the file.
        """
        storage, dtype = stored.storage, stored.dtype
        width = storage.dtype.itemsize
        raw = self._raw(storage.key)[storage.start * width : (storage.start + storage.length) * width]
        last = sum((length - 1) * stride for length, stride in zip(stored.shape, stored.strides, strict=True))
        if 0 not in stored.shape and (stored.offset + last + 1) * dtype.itemsize > raw.numel():
            raise ValueError("a tensor in it reaches beyond its bytes")
        if 0 in stored.shape:
            return torch.empty(stored.shape, dtype=dtype)
        if raw.storage_offset() % dtype.itemsize:
            raw = raw.clone()
        flat = raw[: raw.numel() // dtype.itemsize * dtype.itemsize].view(dtype)
        return flat.as_strided(stored.shape, stored.strides, flat.storage_offset() + stored.offset)

    def _raw(self, key: str) -> Tensor:
        """Return the bytes of a storage."""
        if key in self._embedded:
            return self._embedded[key]
        if key not in self.spans:
            raise ValueError("a tensor in it has no numbers in the file")
        if self._mapped is None:
            size = self._path.stat().st_size
            self._mapped = torch.from_file(str(self._path), shared=False, size=size, dtype=torch.uint8)
        start, length = self.spans[key]
        if start + length > self._mapped.numel():
            raise ValueError("a tensor in it reaches beyond the end of the file")
        return self._mapped[start : start + length]

    def _legacy_spans(self, file: IO[bytes]) -> tuple[dict[str, tuple[int, int]], object]:
        outer, self._dtypes = self._dtypes, {}
        magic, _, system, value, keys = (self.reader.read(file) for _ in range(5))
        if magic != LEGACY_MAGIC or not isinstance(keys, list):
            raise ValueError("it does not begin as torch.save writes")
        if isinstance(system, dict) and system.get("little_endian") is False:
            raise ValueError("a machine of another byte order wrote it")
        spans = {}
        for key in map(str, keys):
            length = int.from_bytes(file.read(8), "little") * self._dtypes[key].itemsize if key in self._dtypes else -1
            if length < 0:
                raise ValueError("it holds numbers of no tensor")
            spans[key] = (file.tell(), length)
            file.seek(length, io.SEEK_CUR)
        self._dtypes = outer
        return spans, value

    def _embed(self, content: object = b"") -> object:
        """Return the storage that plain ``pickle`` embeds as a file in torch's older form."""
        if not isinstance(content, bytes):
            raise ValueError("a tensor in it has no numbers")
        self._spend(content)
        spans, storage = self._legacy_spans(io.BytesIO(content))
        if not isinstance(storage, Storage) or storage.key not in spans:
            raise ValueError("a tensor in it has no numbers")
        start, length = spans[storage.key]
        key = f"embedded {len(self._embedded)}"
        self._embedded[key] = torch.frombuffer(
            bytearray(content[start : start + length]) or bytearray(1), dtype=torch.uint8
        )
        return Storage(key, storage.dtype, storage.length)

    def _storage(self, found: object) -> object:
        """Return the storage for ``("storage", type, key, device, length[, view])``."""
        if not isinstance(found, tuple) or len(found) < 5 or found[0] != "storage":
            if isinstance(found, tuple) and len(found) > 1 and found[0] == "module":
                return found[1]  # a class, with its source
            raise ValueError("it refers to what is no part of a checkpoint")
        kind, key, _, length = found[1:5]
        dtype = _storage_dtype(kind)
        if dtype is None or not isinstance(key, str | int):
            return OtherTensor("of an unknown number format")
        self._dtypes.setdefault(str(key), dtype)
        view = found[5] if len(found) > 5 else None
        if isinstance(view, tuple) and len(view) == 3:
            start, part = _lengths(view[1:])
            return Storage(str(key), dtype, part, start=start)
        return Storage(str(key), dtype, *_lengths((length,)))

    def _spend(self, content: object) -> None:
        """Count bytes copied out of a pickle, so that one string cannot be copied without limit."""
        self._left -= len(content) if isinstance(content, str | bytes | bytearray | list | dict) else 0
        if self._left < 0:
            raise ValueError("it uses the same bytes over and over")

    def _encode(self, text: object = "", codec: object = "") -> bytes:
        if not isinstance(text, str) or codec not in ("latin1", "latin-1"):
            raise ValueError("a text in it is not in the encoding that pickle writes")
        self._spend(text)
        return text.encode("latin1")

    def _array(self, content: object = b"", dtype: object = None, shape: object = (), order: object = "C") -> object:
        array = StoredArray()
        array.__setstate__((1, shape, dtype, order == "F", content))
        return array

    def _dict(self, content: object = None, *_: object) -> object:
        self._spend(content)
        if isinstance(content, dict):
            return BuiltDict(content)
        pairs = [pair for pair in content if isinstance(pair, list | tuple)] if isinstance(content, list) else []
        return BuiltDict({pair[0]: pair[1] for pair in pairs if len(pair) == 2 and isinstance(pair[0], str)})


def _storage_dtype(kind: object) -> torch.dtype | None:
    package, _, member = kind.name.rpartition(".") if isinstance(kind, Named) else ("", "", "")
    return _STORAGE_DTYPES.get(member.removesuffix("Storage")) if package in ("torch", "torch.storage") else None
