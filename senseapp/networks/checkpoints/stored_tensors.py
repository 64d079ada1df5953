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

_STORAGE_DTYPES = {
    **{"Double": torch.float64, "Float": torch.float32, "Half": torch.float16, "BFloat16": torch.bfloat16},
    **{"Long": torch.int64, "Int": torch.int32, "Short": torch.int16, "Char": torch.int8, "Byte": torch.uint8},
    **{"Bool": torch.bool, "ComplexFloat": torch.complex64, "ComplexDouble": torch.complex128},
    "Untyped": torch.uint8,
}
_DTYPES = {str(value): value for value in vars(torch).values() if isinstance(value, torch.dtype)}


class Stored(Built):
    """A tensor or array of the file, whose numbers are not read yet."""

    __slots__ = ()

    @property
    def claimed_bytes(self) -> int:
        """Memory of its numbers if none are shared, in bytes."""
        return 0

    def read(self) -> Tensor | str | None:
        """Return its numbers, or in words the form of one that is not plain and dense; None where it holds objects.

        Raises:
            ValueError: it exceeds its storage, or its storage the file.
        """
        raise NotImplementedError


@dataclass(slots=True, eq=False)
class _Storage(Built):
    """A range of numbers in the file, by its key; ``start`` and ``length`` (in numbers) select a part of it."""

    key: str
    dtype: torch.dtype
    length: int
    start: int = 0


@dataclass(slots=True, eq=False)
class _StoredTensor(Stored):
    """A tensor as a strided view of a storage."""

    file: TensorFile
    storage: _Storage
    dtype: torch.dtype
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def claimed_bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    def read(self) -> Tensor | str:
        """Return its numbers, as a view of the mapped file where its alignment allows."""
        if self.dtype.is_complex:
            return "of complex numbers"
        raw, size = self.file.bytes_of(self.storage), self.dtype.itemsize
        last = sum((length - 1) * stride for length, stride in zip(self.shape, self.strides, strict=True))
        if 0 in self.shape:
            return torch.empty(self.shape, dtype=self.dtype)
        if (self.offset + last + 1) * size > raw.numel():
            raise ValueError("a tensor in it reaches beyond its bytes")
        if raw.storage_offset() % size:
            raw = raw.clone()
        flat = raw[: raw.numel() // size * size].view(self.dtype)
        return flat.as_strided(self.shape, self.strides, flat.storage_offset() + self.offset)


@dataclass(slots=True, eq=False)
class _OtherTensor(Stored):
    """A tensor that is not plain and dense, with the name of its form."""

    form: str

    def read(self) -> str:
        return self.form


class _StoredArray(Stored):
    """A NumPy array; its state is ``(version, shape, dtype, is in Fortran order, bytes)``."""

    def __init__(self, *_: object) -> None:
        self._state: tuple[Any, ...] = (1, (), None, False, b"")

    def __setstate__(self, state: object) -> None:
        if isinstance(state, tuple) and len(state) == 5:
            self._state = state

    @property
    def claimed_bytes(self) -> int:
        content = self._state[4]
        return len(content) if isinstance(content, str | bytes | bytearray) else 0

    def read(self) -> Tensor | None:
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
        if not isinstance(self._name, str) or self._name[:1] not in "fiub" or len(self._name) > 3:
            return None
        try:
            return np.dtype(self._name).newbyteorder(self._order)  # type: ignore[arg-type]
        except TypeError:
            return None


def _lengths(shape: object) -> tuple[int, ...]:
    """Return ``shape`` if it is a tuple of non-negative integers; video networks have five."""
    if not isinstance(shape, tuple) or len(shape) > 16:
        raise ValueError("a tensor in it has no shape")
    if not all(isinstance(length, int) and 0 <= length < 2**63 for length in shape):
        raise ValueError("a tensor in it has no shape")
    return shape


def _first(value: object = None, *_: object) -> object:
    return value


def _nothing(*_: object) -> None:
    return None


def _other(form: str) -> Builder:
    return lambda *_: _OtherTensor(form)


_BUILDERS: dict[str, Builder] = {
    **dict.fromkeys(("torch._utils._rebuild_parameter", "torch._utils._rebuild_parameter_with_state"), _first),
    **dict.fromkeys(("torch.nn.parameter.Parameter", "torch.nn.parameter.Buffer", "torch.Size"), _first),
    "torch._utils._rebuild_device_tensor_from_numpy": _first,
    "torch._utils._rebuild_device_tensor_from_cpu_tensor": _first,
    "torch._utils._rebuild_qtensor": _other("quantized to integers"),
    "torch._utils._rebuild_sparse_tensor": _other("sparse"),
    "torch._utils._rebuild_nested_tensor": _other("a nested tensor"),
    "torch._utils._rebuild_meta_tensor_no_storage": _other("without its numbers (on the meta device)"),
    "torch._utils._rebuild_wrapper_subclass": _other("of a class of its own, without plain numbers"),
    "torch.device": _nothing,
    "torch.serialization._get_layout": _nothing,
    "numpy.core.multiarray._reconstruct": _StoredArray,
    "numpy.core.multiarray.scalar": _nothing,
    "numpy.dtype": _ArrayType,
    "collections.defaultdict": lambda *_: BuiltDict(),
    "builtins.set": _first,
    "builtins.frozenset": _nothing,  # a list could not be an entry of another set
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
        self._left = 4 * path.stat().st_size + 1_000_000  # bytes to copy: small files need more than a multiple
        self.spans: dict[str, tuple[int, int]] = {}
        self._mapped: Tensor | None = None
        self._embedded: dict[str, Tensor] = {}
        self._dtypes: dict[str, torch.dtype] = {}
        self._tensors: dict[str, Builder] = {
            "torch._utils._rebuild_tensor": self._tensor,
            "torch._utils._rebuild_tensor_v2": lambda *arguments: self._tensor(*arguments[:4]),
            "torch._utils._rebuild_tensor_v3": self._tensor,
        }
        own: dict[str, Builder] = {
            "torch._tensor._rebuild_from_type_v2": self._of_type,
            "torch.storage._load_from_bytes": self._embed,
            "numpy.core.numeric._frombuffer": self._array,
            "collections.OrderedDict": self._dict,
            "_codecs.encode": self._encode,
        }
        self.reader = PickleReader(_BUILDERS | self._tensors | own, self._storage)

    def read_legacy(self, file: IO[bytes]) -> object:
        """Return the value in torch's older form: three pickles of header, its own, the keys of storages, their bytes.

        Raises:
            ValueError: the file has another form, or is truncated.
        """
        spans, value = self._legacy_spans(file)
        self.spans |= spans
        return value

    def bytes_of(self, storage: _Storage) -> Tensor:
        """Return the bytes of a storage, of the mapped file unless the pickle holds them."""
        raw, size = self._embedded.get(storage.key), storage.dtype.itemsize
        if raw is None:
            start, length = self.spans.get(storage.key, (0, -1))
            if length < 0:
                raise ValueError("a tensor in it has no numbers in the file")
            if self._mapped is None:
                most = self._path.stat().st_size
                self._mapped = torch.from_file(str(self._path), shared=False, size=most, dtype=torch.uint8)
            if start + length > self._mapped.numel():
                raise ValueError("a tensor in it reaches beyond the end of the file")
            raw = self._mapped[start : start + length]
        return raw[storage.start * size : (storage.start + storage.length) * size]

    def _legacy_spans(self, file: IO[bytes]) -> tuple[dict[str, tuple[int, int]], object]:
        outer, self._dtypes = self._dtypes, {}
        magic, _, system, value, keys = (self.reader.read(file) for _ in range(5))
        if magic != 0x1950A86A20F9469CFC6C or not isinstance(keys, list):  # torch.save's number
            raise ValueError("it does not begin as torch.save writes")
        if isinstance(system, dict) and system.get("little_endian") is False:
            raise ValueError("a machine of another byte order wrote it")
        spans = {}
        for key in map(str, keys):
            if key not in self._dtypes:
                raise ValueError("it holds numbers of no tensor")
            length = int.from_bytes(file.read(8), "little") * self._dtypes[key].itemsize
            spans[key] = (file.tell(), length)
            file.seek(length, io.SEEK_CUR)
        self._dtypes = outer
        return spans, value

    # ---- what stands in a pickle in place of functions and classes

    def _tensor(
        self, storage: object = None, offset: object = 0, shape: object = (), strides: object = (), *rest: object
    ) -> Stored:
        if not isinstance(storage, _Storage):
            return storage if isinstance(storage, Stored) else _OtherTensor("a tensor without numbers")
        dtype = _DTYPES.get(rest[2].name) if len(rest) > 2 and isinstance(rest[2], Named) else None
        (start,) = _lengths((offset,))
        return _StoredTensor(self, storage, dtype or storage.dtype, start, _lengths(shape), _lengths(strides))

    def _of_type(self, builder: object = None, _: object = None, arguments: object = (), *__: object) -> object:
        """Return the tensor inside an instance of a tensor subclass."""
        found = (self._tensors | _BUILDERS).get(builder.name) if isinstance(builder, Named) else None
        if found is None or not isinstance(arguments, tuple):
            return _OtherTensor("a tensor of its own class")
        return found(*arguments[:8])

    def _embed(self, content: object = b"") -> object:
        """Return the storage that plain ``pickle`` embeds as a file in torch's older form."""
        if not isinstance(content, bytes):
            raise ValueError("a tensor in it has no numbers")
        self._spend(content)
        spans, storage = self._legacy_spans(io.BytesIO(content))
        if not isinstance(storage, _Storage) or storage.key not in spans:
            raise ValueError("a tensor in it has no numbers")
        start, length = spans[storage.key]
        key = f"embedded {len(self._embedded)}"
        own = bytearray(content[start : start + length]) or bytearray(1)
        self._embedded[key] = torch.frombuffer(own, dtype=torch.uint8)
        return _Storage(key, storage.dtype, storage.length)

    def _storage(self, found: object) -> object:
        """Return the storage for ``("storage", type, key, device, length[, view])``."""
        match found:
            case ("storage", kind, str() | int() as key, _, length, *more):
                pass
            case ("module", kind, *_):
                return kind  # a class, with its source
            case _:
                raise ValueError("it refers to what is no part of a checkpoint")
        if (dtype := _storage_dtype(kind)) is None:
            return _OtherTensor("of an unknown number format")
        self._dtypes.setdefault(str(key), dtype)
        start, part = _lengths(more[0][1:3]) if more and isinstance(more[0], tuple) else (0, *_lengths((length,)))
        return _Storage(str(key), dtype, part, start=start)

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
        array = _StoredArray()
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
