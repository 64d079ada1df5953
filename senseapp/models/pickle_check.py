"""What a pickle would call, found out without running any of it.

``torch.load(weights_only=True)`` refuses code by itself. This check comes first, for three reasons: it names the
offending class in our words, it allows less (``bytearray(10**12)`` is refused here), and it bounds the work.
"""

from __future__ import annotations

import pickletools
from typing import IO, cast

from senseapp.errors import InvalidCheckpoint
from senseapp.models.weights_file import RESAVE_ADVICE

MAX_PICKLE_BYTES = 16_000_000
"""Names and shapes of a billion weights take about one megabyte, and their optimizer two more."""

_MAX_OPCODES = 2_000_000  # a named tensor takes about 40

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
        "pathlib._local.PosixPath",
        "pathlib._local.WindowsPath",
    }
)
"""Harmless records of a training run (a best accuracy, a path), read as :class:`Inert` instead."""
_DTYPE_PREFIXES = ("float", "bfloat", "int", "uint", "bool", "complex", "double", "half", "long", "short")


class Inert:
    """Stands for a value that is not needed: takes any arguments and any state, and keeps nothing."""

    def __init__(self, *_: object) -> None:
        pass

    def __setstate__(self, _: object) -> None:
        pass


class BoundedReader:
    """Reads from a file, up to ``MAX_PICKLE_BYTES`` in all, so that looking through a hostile one ends soon."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._left = MAX_PICKLE_BYTES

    def read(self, size: int) -> bytes:
        """Return up to ``size`` bytes.

        Raises:
            ValueError: more than the bound was asked for.
        """
        return self._spend(self._file.read(min(size, self._left + 1)))

    def readline(self) -> bytes:
        """Return one line; raises as :meth:`read`."""
        return self._spend(self._file.readline(self._left + 1))

    def _spend(self, chunk: bytes) -> bytes:
        self._left -= len(chunk)
        if self._left < 0:
            raise ValueError(f"more than {MAX_PICKLE_BYTES // 1_000_000} MB of it are not weights")
        return chunk


def globals_in(file: BoundedReader) -> set[str]:
    """Return the dotted names that one pickle in ``file`` asks for, read up to its STOP.

    Raises:
        ValueError: it is not a whole pickle.
    """
    found: set[str] = set()
    strings: list[str] = []
    for count, (opcode, argument, _) in enumerate(pickletools.genops(cast(IO[bytes], file))):
        if count > _MAX_OPCODES:
            raise ValueError(f"more than {_MAX_OPCODES:,} steps to build what is in it")
        if opcode.name in ("GLOBAL", "INST"):
            found.add(str(argument).replace(" ", "."))
        elif opcode.name == "STACK_GLOBAL":
            found.add(".".join(strings[-2:]))  # for the message: torch does not read this opcode at all
        elif isinstance(argument, str):
            strings.append(argument)
    return found


def check_globals(names: set[str], *, file_name: str) -> None:
    """Require every name to be one that plain weights need.

    Raises:
        InvalidCheckpoint: names the first one that is not, and how to save the weights without it.
    """
    for name in sorted(names):
        if not _is_plain(name):
            raise InvalidCheckpoint(
                f"{file_name} holds {name}, not only weights. Loading it could run code from the file, "
                f"so it was not opened. {RESAVE_ADVICE}"
            )


def _is_plain(name: str) -> bool:
    if name in _TORCH_NAMES or name in INERT_NAMES:
        return True
    package, _, member = name.rpartition(".")
    return package == "torch" and (member.endswith("Storage") or member.startswith(_DTYPE_PREFIXES))
