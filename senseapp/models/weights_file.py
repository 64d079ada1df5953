"""What form a weights file has, and whether it holds nothing but weights: found out before any of it is loaded.

``torch.load(weights_only=True)`` refuses code by itself. Its pickles are looked through first, for three reasons: the
message names the offending class, less is allowed (``bytearray(10**12)`` is refused here), and the work is bounded.
"""

from __future__ import annotations

import enum
import pickletools
import zipfile
from contextlib import closing
from pathlib import Path
from typing import IO, cast

from senseapp.core.errors import InvalidCheckpoint, first_line_of
from senseapp.core.foreign_zip import ZIP_DAMAGE, ForeignZip, TooManyMembers
from senseapp.records.model_files import small_form

CHECKPOINT_SUFFIXES = (".pth", ".pt", ".bin", ".ckpt", ".tar", ".safetensors")
RESAVE_ADVICE = (
    "Save only the weights where the model was made: torch.save(model.state_dict(), 'weights.pth'), "
    "or safetensors.torch.save_file(model.state_dict(), 'weights.safetensors')."
)
MAX_PICKLE_BYTES = 16_000_000
"""Names and shapes of a billion weights take about one megabyte, and their optimizer two more."""
_MAX_OPCODES = 2_000_000  # a named tensor takes about 40
_MAX_ENTRIES = 30_000  # no architecture has 3,000 weights; averaged copies and an optimizer keep four more of each
_MAX_KEY_PARTS = 16
_SNIFFED_BYTES = 4096
_MAX_SAFETENSORS_HEADER_BYTES = 100_000_000
_TAR_MAGIC = slice(257, 262)
_FOREIGN_KINDS: tuple[tuple[bytes, str], ...] = (
    (b"\x1f\x8b", "a gzip archive: unpack it first"),
    (b"BZh", "a bzip2 archive: unpack it first"),
    (b"\xfd7zXZ", "an xz archive: unpack it first"),
    (b"7z\xbc\xaf", "a 7z archive: unpack it first"),
    (b"\x28\xb5\x2f\xfd", "a zstd archive: unpack it first"),
    (b"\x89HDF", "an HDF5 file (Keras or TensorFlow), which holds no PyTorch weights"),
    (b"\x93NUMPY", "a NumPy array, which has no layer names"),
    (b"\x89PNG", "a picture"),
    (b"\xff\xd8\xff", "a picture"),
    (b"GIF8", "a picture"),
    (b"%PDF", "a PDF document"),
    (b"version https://git-lfs", "a Git LFS pointer, not the weights it stands for: run git lfs pull"),
)
_LEGACY_MAGIC = b"\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19."  # torch.save's number, pickled, after the protocol bytes
_LEGACY_PICKLES = 5  # magic number, protocol, byte order, the object, the keys of its storages
_MALFORMED = (ValueError, EOFError, OverflowError, MemoryError)  # what looking through a pickle may raise

_TORCH_NAMES = frozenset(
    {
        "_codecs.encode",
        "argparse.Namespace",
        "builtins.set",
        "__builtin__.set",
        "collections.OrderedDict",
        "torch.Size",
        "torch.Tensor",
        "torch.device",
        "torch._tensor._rebuild_from_type_v2",
        "torch._utils._rebuild_parameter",
        "torch._utils._rebuild_parameter_with_state",
        "torch._utils._rebuild_tensor",
        "torch._utils._rebuild_tensor_v2",
        "torch._utils._rebuild_tensor_v3",
        "torch.nn.parameter.Parameter",
        "torch.storage.TypedStorage",
        "torch.storage.UntypedStorage",
    }
)
INERT_NAMES = frozenset(
    {
        "numpy.core.multiarray.scalar",
        "numpy._core.multiarray.scalar",
        "numpy.dtype",
        "pathlib.PosixPath",
        "pathlib.WindowsPath",
        "pathlib.PurePosixPath",
        "pathlib.PureWindowsPath",
        "pathlib._local.PosixPath",  # as Python 3.13 calls them
        "pathlib._local.WindowsPath",
        "pathlib._local.PurePosixPath",
        "pathlib._local.PureWindowsPath",
    }
)
"""Harmless records of a training run (a best accuracy, a path), to be read as :class:`Inert` instead."""
_DTYPE_PREFIXES = ("float", "bfloat", "int", "uint", "bool", "complex", "double", "half", "long", "short")


class FileKind(enum.Enum):
    """The three forms that PyTorch weights are kept in."""

    ZIP = "zip"
    PICKLE = "pickle"
    SAFETENSORS = "safetensors"


class Inert:
    """Stands for a value that is not needed: takes any arguments and any state, and keeps nothing."""

    def __init__(self, *_: object) -> None:
        pass

    def __setstate__(self, _: object) -> None:
        pass


def check_weights_file(path: Path) -> FileKind:
    """Return the form of the file at ``path``, judged by its content, once nothing but weights was found in it.

    Raises:
        InvalidCheckpoint: missing, empty, of another suffix or form, truncated, TorchScript, another program's
            archive, a decompression bomb, or with code.
    """
    kind = _kind_of(path)
    if kind is FileKind.ZIP:
        _check_archive(path)
    elif kind is FileKind.PICKLE:
        _check_legacy(path)
    else:
        _check_header(path)
    return kind


def damaged(path: Path, reason: str) -> InvalidCheckpoint:
    """Return the error for a file of a known kind that cannot be read."""
    return InvalidCheckpoint(
        f"{path.name} was cut short or is damaged ({reason.rstrip('.')}). Upload it again, or save it again."
    )


def _kind_of(path: Path) -> FileKind:
    if not path.is_file():
        raise InvalidCheckpoint(f"There is no checkpoint file named {path.name}. Upload it again.")
    if (small := small_form(path.name)) is not None:
        raise InvalidCheckpoint(
            f"{path.name} holds {small.title}, which is not read here. Choose the plain checkpoint that was written "
            "beside it."
        )
    if path.suffix.lower() not in CHECKPOINT_SUFFIXES:
        raise InvalidCheckpoint(
            f"A checkpoint ends in one of {', '.join(CHECKPOINT_SUFFIXES)}, got {path.name}. "
            "Choose the weights file, or rename it if it is one."
        )
    size = path.stat().st_size
    if size == 0:
        raise InvalidCheckpoint(f"{path.name} is empty (0 bytes). Upload it again.")
    with path.open("rb") as file:
        head = file.read(_SNIFFED_BYTES)
    kind = _kind_by_magic(head, size)
    if kind is None:
        raise InvalidCheckpoint(f"{path.name} is {_describe(head)}. {RESAVE_ADVICE}")
    if path.suffix.lower() == ".safetensors" and kind is not FileKind.SAFETENSORS:
        raise InvalidCheckpoint(
            f"{path.name} ends in .safetensors but was written by torch.save. Rename it to end in .pth."
        )
    return kind


def _kind_by_magic(head: bytes, size: int) -> FileKind | None:
    if head.startswith(b"PK"):
        return FileKind.ZIP
    if head[:1] == b"\x80" and head[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05"):
        return FileKind.PICKLE
    header_bytes = int.from_bytes(head[:8], "little")
    if head[8:9] == b"{" and 2 <= header_bytes <= min(size - 8, _MAX_SAFETENSORS_HEADER_BYTES):
        return FileKind.SAFETENSORS
    return None


def _describe(head: bytes) -> str:
    for magic, description in _FOREIGN_KINDS:
        if head.startswith(magic):
            return description
    if head[_TAR_MAGIC] == b"ustar":
        return "a tar archive, a form that PyTorch has not written since 2017 and that cannot be read safely"
    if head[8:9] == b"{":
        return "a safetensors file that was cut short, or is damaged: upload it again"
    if not head.strip(b"\0"):
        return "not a checkpoint: it starts with zeros only"
    if _is_text(head):
        return "a text file, not weights"
    return "not a file that PyTorch or safetensors wrote, or it is damaged"


def _is_text(head: bytes) -> bool:
    try:
        head[:-4].decode("utf-8")  # the last character may be cut
    except UnicodeDecodeError:
        return False
    return all(byte in b"\t\n\r" or 32 <= byte < 127 or byte >= 128 for byte in head)


def _check_archive(path: Path) -> None:
    """Require a zip archive to hold plain weights, uncompressed, in no more bytes than the file has."""
    try:
        with closing(ForeignZip(path, most_members=_MAX_ENTRIES)) as archive:
            _check_entries(path, archive)
            with archive.open(_pickle_in(path, archive)) as file:
                names = _globals_in(_BoundedReader(file))
    except TooManyMembers as error:
        raise InvalidCheckpoint(
            f"{path.name} holds more than {_MAX_ENTRIES:,} entries, the most that a checkpoint has. {RESAVE_ADVICE}"
        ) from error
    except ZIP_DAMAGE as error:
        raise damaged(path, str(error)) from error
    _check_globals(names, path)


def _check_entries(path: Path, archive: ForeignZip) -> None:
    parts = [entry.filename.split("/") for entry in archive.members]
    if any(len(part) > 1 and part[1] in ("constants.pkl", "code") for part in parts):
        raise InvalidCheckpoint(
            f"{path.name} is a TorchScript archive, a program rather than weights. Save its weights instead: "
            f"torch.save(torch.jit.load('{path.name}').state_dict(), 'weights.pth')."
        )
    compressed = any(entry.compress_type != zipfile.ZIP_STORED for entry in archive.members)
    if compressed or archive.total_bytes > path.stat().st_size:
        raise InvalidCheckpoint(
            f"{path.name} is a compressed archive, or its entries overlap; torch.save writes neither. "
            "If it is a zip around a checkpoint, unpack it and choose the file inside. " + RESAVE_ADVICE
        )


def _check_header(path: Path) -> None:
    """Require a safetensors file to name no more tensors than a network has."""
    with path.open("rb") as file:
        header = file.read(int.from_bytes(file.read(8), "little"))
    if (count := header.count(b'"data_offsets"')) > _MAX_ENTRIES:
        raise InvalidCheckpoint(
            f"{path.name} names {count:,} tensors; a checkpoint has at most {_MAX_ENTRIES:,}. {RESAVE_ADVICE}"
        )


def _pickle_in(path: Path, archive: ForeignZip) -> zipfile.ZipInfo:
    names = {entry.filename for entry in archive.members}
    pickles = [
        entry for entry in archive.members if entry.filename.count("/") == 1 and entry.filename.endswith("/data.pkl")
    ]
    if len(names) != len(archive.members) or len(pickles) != 1:
        raise InvalidCheckpoint(f"{path.name} is a zip archive that torch.save did not write. {RESAVE_ADVICE}")
    return pickles[0]


def _check_legacy(path: Path) -> None:
    """Look through the pickles that come before the weights in torch's older form."""
    names: set[str] = set()
    with path.open("rb") as file:
        is_checkpoint = file.read(2 + len(_LEGACY_MAGIC))[2:] == _LEGACY_MAGIC
        file.seek(0)
        bounded = _BoundedReader(file)
        try:
            for _ in range(_LEGACY_PICKLES if is_checkpoint else 1):
                names |= _globals_in(bounded)
        except _MALFORMED as error:
            raise damaged(path, first_line_of(error, most=160)) from error
        finally:
            if is_checkpoint:
                _check_globals(names, path)
    if not is_checkpoint:
        raise InvalidCheckpoint(
            f"{path.name} is a Python pickle{f' with {min(names)} in it' if names else ''}, not a checkpoint. Loading "
            f"it could run code from the file, so it was not opened. {RESAVE_ADVICE}"
        )


class _BoundedReader:
    """Reads from a file, up to ``MAX_PICKLE_BYTES`` in all, so that looking through a hostile one ends soon."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._left = MAX_PICKLE_BYTES

    def read(self, size: int) -> bytes:
        return self._spend(self._file.read(min(size, self._left + 1)))

    def readline(self) -> bytes:
        return self._spend(self._file.readline(self._left + 1))

    def _spend(self, chunk: bytes) -> bytes:
        self._left -= len(chunk)
        if self._left < 0:
            raise ValueError(f"more than {MAX_PICKLE_BYTES // 1_000_000} MB of it are not weights")
        return chunk


def _globals_in(file: _BoundedReader) -> set[str]:
    """Return the dotted names that one pickle in ``file`` asks for, read up to its STOP.

    Raises:
        ValueError: it is not a whole pickle, or would keep torch busy without end.
    """
    found: set[str] = set()
    stack = _PickleStack()
    for count, (opcode, argument, _) in enumerate(pickletools.genops(cast(IO[bytes], file))):
        if count > _MAX_OPCODES:
            raise ValueError(f"more than {_MAX_OPCODES:,} steps to build what is in it")
        if opcode.name in ("GLOBAL", "INST"):
            found.add(str(argument).replace(" ", "."))
        elif opcode.name == "STACK_GLOBAL":
            found.add(".".join(map(str, stack.top(2))))  # for the message: torch does not read this opcode at all
        stack.step(opcode, argument)
    return found


_OTHER = object()  # a value of which nothing needs to be known
_ENCODE = "_codecs encode"


class _PickleStack:
    """The stack of an unpickler as far as it is plain: texts, numbers, and tuples of them; all else is ``_OTHER``.

    Hashing a tuple of tuples that share each other takes time that doubles with every level, so only plain values and
    flat tuples may be keys; and of codecs only the one that pickle itself writes is quick for any text.
    """

    def __init__(self) -> None:
        self._values: list[object] = []
        self._memo: dict[object, object] = {}

    def top(self, count: int) -> list[object]:
        """Return the uppermost ``count`` values, the top last."""
        return self._values[-count:]

    def step(self, opcode: pickletools.OpcodeInfo, argument: object) -> None:
        """Do what one opcode does to the stack.

        Raises:
            ValueError: it takes what is not there, or what plain weights never hold.
        """
        name = opcode.name
        if name in ("PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"):
            self._memo[len(self._memo) if name == "MEMOIZE" else argument] = self._values[-1] if self._values else None
            return
        taken = self._take(opcode)
        self._check(name, taken)
        if name in ("GET", "BINGET", "LONG_BINGET"):
            self._values.append(self._memo.get(argument, _OTHER))
        elif name in ("TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "EMPTY_TUPLE"):
            flat = all(_is_scalar(value) for value in taken) and len(taken) <= _MAX_KEY_PARTS
            self._values.append(tuple(taken) if flat else _OTHER)
        elif name == "GLOBAL":
            self._values.append(_ENCODE if argument == _ENCODE else _OTHER)
        elif name == "DUP":
            self._values.extend(taken * 2)
        else:
            self._values.extend(_pushed(opcode, argument))

    def _take(self, opcode: pickletools.OpcodeInfo) -> list[object]:
        """Take off what the opcode reads; of what lies above a mark everything, and the mark."""
        count = len(opcode.stack_before)
        above: list[object] = []
        if pickletools.markobject in opcode.stack_before:
            while self._values and self._values[-1] is not pickletools.markobject:
                above.append(self._values.pop())
            count -= len(opcode.stack_before) - opcode.stack_before.index(pickletools.markobject) - 1
        if len(self._values) < count:
            raise ValueError("it takes more values than it makes")
        below = self._values[len(self._values) - count :]
        del self._values[len(self._values) - count :]
        return [value for value in below if value is not pickletools.markobject] + above[::-1]

    def _check(self, name: str, taken: list[object]) -> None:
        keys = {"SETITEM": taken[1:2], "SETITEMS": taken[1::2], "DICT": taken[::2]}.get(name, [])
        if any(not (_is_scalar(key) or isinstance(key, tuple)) for key in keys):
            raise ValueError("a key in it is neither a name nor a number")
        if name == "REDUCE" and taken[0] is _ENCODE:
            codec = taken[1][1:] if isinstance(taken[1], tuple) else ()
            if codec not in (("latin1",), ("latin-1",)):
                raise ValueError("a text in it is not in the encoding that pickle writes")


def _is_scalar(value: object) -> bool:
    return value is None or isinstance(value, str | bytes | int | float)


def _pushed(opcode: pickletools.OpcodeInfo, argument: object) -> list[object]:
    """Return what an opcode that computes nothing puts on the stack."""
    if opcode.stack_after == [pickletools.markobject]:
        return [pickletools.markobject]
    if opcode.name in ("NONE", "NEWTRUE", "NEWFALSE"):
        return [None]
    plain = isinstance(argument, str | bytes | int | float) and not opcode.stack_before
    return [argument if plain else _OTHER] * len(opcode.stack_after)


def _check_globals(names: set[str], path: Path) -> None:
    """Require every name to be one that plain weights need; the first that is not goes into the error."""
    refused = [name for name in sorted(names) if not _is_plain(name)]
    if refused:
        raise InvalidCheckpoint(
            f"{path.name} holds {refused[0]}, not only weights. Loading it could run code from the file, "
            f"so it was not opened. {RESAVE_ADVICE}"
        )


def _is_plain(name: str) -> bool:
    package, _, member = name.rpartition(".")
    is_dtype = package == "torch" and (member.endswith("Storage") or member.startswith(_DTYPE_PREFIXES))
    return is_dtype or name in _TORCH_NAMES or name in INERT_NAMES
