"""Tensors as a pickle of torch describes them; their numbers are memory-mapped from the file."""

import io
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

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


@dataclass(slots=True, eq=False)
class Stored(Built):
    """A tensor of the file.

    Attributes:
        form: how it is stored, of one that is not plain and dense; else empty.
        claimed_bytes: memory of its numbers if none are shared.
    """

    form: str = ""
    claimed_bytes: int = 0
    _view: Callable[[], Tensor] | None = None

    def read(self) -> Tensor | str:
        """Return its numbers, or in words the form of one that is not plain and dense.

        Raises ValueError if it exceeds its storage, or its storage the file.
        """
        return self.form if self._view is None else self._view()


@dataclass(slots=True, eq=False)
class _Storage(Built):
    """A range of numbers in the file, by its key; ``start`` and ``length`` (in numbers) select a part of it."""

    key: str
    dtype: torch.dtype
    length: int
    start: int = 0


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
    return lambda *_: Stored(form)


_BUILDERS: dict[str, Builder] = {
    **dict.fromkeys(("torch._utils._rebuild_parameter", "torch._utils._rebuild_parameter_with_state"), _first),
    **dict.fromkeys(("torch.nn.parameter.Parameter", "torch.nn.parameter.Buffer", "torch.Size"), _first),
    "torch._utils._rebuild_qtensor": _other("quantized to integers"),
    "torch._utils._rebuild_sparse_tensor": _other("sparse"),
    "torch._utils._rebuild_nested_tensor": _other("a nested tensor"),
    "torch._utils._rebuild_meta_tensor_no_storage": _other("without its numbers (on the meta device)"),
    "torch._utils._rebuild_wrapper_subclass": _other("of a class of its own, without plain numbers"),
    "torch.device": _nothing,
    "torch.serialization._get_layout": _nothing,
    "numpy.core.multiarray.scalar": _nothing,
    "numpy.dtype": lambda *_: Built(),
    "_codecs.encode": _nothing,  # bytes, as pickle's older protocols write them
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
        self._left = 4 * path.stat().st_size + 1_000_000  # entries to copy: small files need more than a multiple
        self.spans: dict[str, tuple[int, int]] = {}
        self._mapped: Tensor | None = None
        self._dtypes: dict[str, torch.dtype] = {}
        self._tensors: dict[str, Builder] = {
            "torch._utils._rebuild_tensor": self._tensor,
            "torch._utils._rebuild_tensor_v2": lambda *arguments: self._tensor(*arguments[:4]),
            "torch._utils._rebuild_tensor_v3": self._tensor,
        }
        own: dict[str, Builder] = {
            "torch._tensor._rebuild_from_type_v2": self._of_type,
            "collections.OrderedDict": self._dict,
        }
        self.reader = PickleReader(_BUILDERS | self._tensors | own, self._storage)

    def read_legacy(self) -> object:
        """Return the value in torch's older form: three pickles of header, its own, the keys of storages, their bytes.

        Raises ValueError if the file has another form, or is truncated.
        """
        with self._path.open("rb") as file:
            magic, _, system, value, keys = (self.reader.read(file) for _ in range(5))
            if magic != 0x1950A86A20F9469CFC6C or not isinstance(keys, list):  # torch.save's number
                raise ValueError("it does not begin as torch.save writes")
            if isinstance(system, dict) and system.get("little_endian") is False:
                raise ValueError("a machine of another byte order wrote it")
            for key in map(str, keys):
                if key not in self._dtypes:
                    raise ValueError("it holds numbers of no tensor")
                length = int.from_bytes(file.read(8), "little") * self._dtypes[key].itemsize
                self.spans[key] = (file.tell(), length)
                file.seek(length, io.SEEK_CUR)
        return value

    def _view(
        self, storage: _Storage, dtype: torch.dtype, offset: int, shape: tuple[int, ...], strides: tuple[int, ...]
    ) -> Tensor:
        """Return a tensor as a strided view of a storage, in the mapped file where its alignment allows."""
        raw, size = self._bytes_of(storage), dtype.itemsize
        last = sum((length - 1) * stride for length, stride in zip(shape, strides, strict=True))
        if 0 in shape:
            return torch.empty(shape, dtype=dtype)
        if (offset + last + 1) * size > raw.numel():
            raise ValueError("a tensor in it reaches beyond its bytes")
        if raw.storage_offset() % size:
            raw = raw.clone()
        flat = raw[: raw.numel() // size * size].view(dtype)
        return flat.as_strided(shape, strides, flat.storage_offset() + offset)

    def _bytes_of(self, storage: _Storage) -> Tensor:
        """Return the bytes of a storage, of the mapped file."""
        size, (start, length) = storage.dtype.itemsize, self.spans.get(storage.key, (0, -1))
        if length < 0:
            raise ValueError("a tensor in it has no numbers in the file")
        if self._mapped is None:
            most = self._path.stat().st_size
            self._mapped = torch.from_file(str(self._path), shared=False, size=most, dtype=torch.uint8)
        if start + length > self._mapped.numel():
            raise ValueError("a tensor in it reaches beyond the end of the file")
        raw = self._mapped[start : start + length]
        return raw[storage.start * size : (storage.start + storage.length) * size]

    # ---- what stands in a pickle in place of functions and classes

    def _tensor(
        self, storage: object = None, offset: object = 0, shape: object = (), strides: object = (), *rest: object
    ) -> Stored:
        if not isinstance(storage, _Storage):
            return storage if isinstance(storage, Stored) else Stored("a tensor without numbers")
        given = _DTYPES.get(rest[2].name) if len(rest) > 2 and isinstance(rest[2], Named) else None
        dtype, (start,), lengths = given or storage.dtype, _lengths((offset,)), _lengths(shape)
        claimed, strided = math.prod(lengths) * dtype.itemsize, _lengths(strides)
        if dtype.is_complex:
            return Stored("of complex numbers", claimed)
        return Stored("", claimed, partial(self._view, storage, dtype, start, lengths, strided))

    def _of_type(self, builder: object = None, _: object = None, arguments: object = (), *__: object) -> object:
        """Return the tensor inside an instance of a tensor subclass."""
        found = (self._tensors | _BUILDERS).get(builder.name) if isinstance(builder, Named) else None
        if found is None or not isinstance(arguments, tuple):
            return Stored("a tensor of its own class")
        return found(*arguments[:8])

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
            return Stored("of an unknown number format")
        self._dtypes.setdefault(str(key), dtype)
        start, part = _lengths(more[0][1:3]) if more and isinstance(more[0], tuple) else (0, *_lengths((length,)))
        return _Storage(str(key), dtype, part, start=start)

    def _dict(self, content: object = None, *_: object) -> object:
        """Return an ordered dict; what is copied is counted, so that one dict cannot be copied without limit."""
        self._left -= len(content) if isinstance(content, list | dict) else 0
        if self._left < 0:
            raise ValueError("it uses the same entries over and over")
        if isinstance(content, dict):
            return BuiltDict(content)
        pairs = [pair for pair in content if isinstance(pair, list | tuple)] if isinstance(content, list) else []
        return BuiltDict({pair[0]: pair[1] for pair in pairs if len(pair) == 2 and isinstance(pair[0], str)})


def _storage_dtype(kind: object) -> torch.dtype | None:
    package, _, member = kind.name.rpartition(".") if isinstance(kind, Named) else ("", "", "")
    return _STORAGE_DTYPES.get(member.removesuffix("Storage")) if package in ("torch", "torch.storage") else None
