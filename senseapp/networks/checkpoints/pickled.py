"""Pickle reader that treats a pickle as data: no instruction can import, call or change anything outside of it.

Unpickling builds objects by calling functions that the file names. Here a name stays a string: dicts, lists, tuples,
strings and numbers are built, the few functions of ``builders`` (tensors, arrays) replace those of the same names, and
each object of another class becomes a :class:`Record` of its arguments and state. Instructions are counted, which
bounds the time for a hostile file, and only short dict keys are hashed.
"""

from __future__ import annotations

import io
import pickletools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import IO, Any, Protocol, runtime_checkable

MAX_INSTRUCTIONS = 2_000_000
"""A named tensor takes about 40."""
_MAX_INTEGER_KEY = 2**63  # hashing a long number takes time at each use
_MAX_ARGUMENTS = 16  # of a function of ``builders``; passing many takes time at each use
_MAX_NAME_LENGTH = 300  # characters of a module and a class together, far above those of torch; names are looked up
_MARK = object()
_LITERALS = frozenset(
    {
        *("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT"),
        *("STRING", "BINSTRING", "SHORT_BINSTRING", "UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"),
        *("BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8"),
    }
)
_CONSTANTS: dict[str, object] = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}
_CONTAINERS: dict[str, Callable[[], object]] = {"EMPTY_DICT": dict, "EMPTY_LIST": list, "EMPTY_SET": list}
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}  # entries, by the name of the instruction
_WITHOUT_EFFECT = frozenset({"PROTO", "FRAME", "STOP"})

Builder = Callable[..., object]


@dataclass(frozen=True, slots=True)
class Global:
    """The dotted name of a class or function, which is not looked up."""

    name: str


@dataclass(slots=True, eq=False)
class Record:
    """An object of an unknown class: the name of the class, and the values to build it from.

    Attributes:
        arguments: of its constructor.
        state: mostly its attributes, as a dict.
        items: its entries, if its class is a kind of dict.
        values: its elements, if it is a kind of list.
    """

    name: str
    arguments: tuple[object, ...] = ()
    state: object = None
    items: dict[Any, object] = field(default_factory=dict)
    values: list[object] = field(default_factory=list)

    def build(self, state: object) -> None:
        """Keep the state that unpickling would set."""
        self.state = state


@runtime_checkable
class Built(Protocol):
    """A value that receives further state after its construction."""

    def build(self, state: object) -> None:
        """Set the state."""


class PickleReader:
    """Reads the pickles of one file; instructions are counted over all of them.

    Attributes:
        made: names of the classes and functions whose objects became records.
    """

    def __init__(self, builders: Mapping[str, Builder], persistent: Callable[[object], object]) -> None:
        """``builders`` build the values of some names; ``persistent`` returns those referred to by an id."""
        self.recorded: set[str] = set()
        self._builders = builders
        self._persistent = persistent
        self._count = 0
        self._stack: list[Any] = []
        self._memo: dict[int, object] = {}

    def read(self, file: IO[bytes] | io.BufferedIOBase) -> object:
        """Return the value of one pickle, from the position of ``file`` to the pickle's end.

        Raises:
            ValueError: the pickle is incomplete, or has too many instructions.
        """
        outer, self._stack, self._memo = (self._stack, self._memo), [], {}
        try:
            for opcode, argument, _ in pickletools.genops(file):  # type: ignore[arg-type]
                self._count += 1
                if self._count > MAX_INSTRUCTIONS:
                    raise ValueError(f"more than {MAX_INSTRUCTIONS:,} steps to build what is in it")
                self._step(opcode.name, argument)
            return self._stack.pop()
        except (IndexError, KeyError, TypeError, AttributeError) as error:
            raise ValueError("its pickle takes more values than it makes") from error
        finally:
            self._stack, self._memo = outer

    def _step(self, name: str, argument: Any) -> None:
        stack = self._stack
        if name in _LITERALS:
            stack.append(argument)
        elif name in _CONSTANTS:
            stack.append(_CONSTANTS[name])
        elif name in _CONTAINERS:
            stack.append(_CONTAINERS[name]())
        elif name in _TUPLES:
            stack[-_TUPLES[name] :] = [tuple(self._top(_TUPLES[name]))]
        elif name.endswith("PUT"):
            self._memo[argument] = stack[-1]
        elif name == "MEMOIZE":
            self._memo[len(self._memo)] = stack[-1]
        elif name.endswith("GET"):
            stack.append(self._memo[argument])
        elif name not in _WITHOUT_EFFECT:
            _STEPS[name](self, argument)

    def _top(self, count: int) -> list[Any]:
        if len(self._stack) < count:
            raise IndexError
        return self._stack[-count:]

    def _above_mark(self) -> list[Any]:
        """Remove the topmost mark and return the values above it."""
        values: list[Any] = []
        while (value := self._stack.pop()) is not _MARK:
            values.append(value)
        return values[::-1]

    def _make(self, maker: object, arguments: object) -> object:
        """Return a replacement for the result of ``maker``, which is not called."""
        name = maker.name if isinstance(maker, Global | Record) else type(maker).__name__
        positional = arguments if isinstance(arguments, tuple) else ()
        if isinstance(maker, Global) and name in self._builders and len(positional) <= _MAX_ARGUMENTS:
            return self._builders[name](*positional)
        self.recorded.add(name)
        return Record(name, positional)

    def _step_reduce(self, _: Any) -> None:
        arguments, maker = self._stack.pop(), self._stack.pop()
        self._stack.append(self._make(maker, arguments))

    def _step_newobj_ex(self, _: Any) -> None:
        keywords = self._stack.pop()
        self._step_reduce(None)
        if isinstance(self._stack[-1], Record):
            self._stack[-1].state = keywords

    def _step_inst(self, argument: Any) -> None:
        arguments = tuple(self._above_mark())
        self._stack.append(self._make(Global(argument.replace(" ", ".")), arguments))

    def _step_obj(self, _: Any) -> None:
        maker, *arguments = self._above_mark()
        self._stack.append(self._make(maker, tuple(arguments)))

    def _step_build(self, _: Any) -> None:
        state = self._stack.pop()
        if isinstance(self._stack[-1], Built):
            self._stack[-1].build(state)

    def _step_stack_global(self, _: Any) -> None:
        name, module = self._stack.pop(), self._stack.pop()
        if not isinstance(name, str) or not isinstance(module, str) or len(name) + len(module) > _MAX_NAME_LENGTH:
            raise ValueError("its pickle names a class by what is no name")
        self._stack.append(Global(f"{module}.{name}"))

    def _set(self, pairs: list[Any]) -> None:
        target = self._stack[-1]
        items = target.items if isinstance(target, Record) else target
        if isinstance(items, dict):
            items.update(entries(pairs))

    def _extend(self, values: list[Any]) -> None:
        target = self._stack[-1]
        if isinstance(target, list | Record):
            (target.values if isinstance(target, Record) else target).extend(values)


def entries(pairs: list[Any]) -> dict[Any, object]:
    """Return the alternating keys and values of ``pairs`` as a dict, without keys that are records."""
    return {key: value for key, value in zip(pairs[::2], pairs[1::2], strict=True) if _is_key(key)}


def _is_key(key: object) -> bool:
    if isinstance(key, int):
        return -_MAX_INTEGER_KEY < key < _MAX_INTEGER_KEY
    return key is None or isinstance(key, str | bytes | float)


def _step_setitem(reader: PickleReader, _: Any) -> None:
    value, key = reader._stack.pop(), reader._stack.pop()
    reader._set([key, value])


def _step_pop_mark(reader: PickleReader, _: Any) -> None:
    reader._above_mark()


_STEPS: dict[str, Callable[[PickleReader, Any], None]] = {
    "MARK": lambda reader, _: reader._stack.append(_MARK),
    "POP": lambda reader, _: reader._stack.pop(),
    "POP_MARK": _step_pop_mark,
    "DUP": lambda reader, _: reader._stack.append(reader._stack[-1]),
    "TUPLE": lambda reader, _: reader._stack.append(tuple(reader._above_mark())),
    "LIST": lambda reader, _: reader._stack.append(reader._above_mark()),
    "FROZENSET": lambda reader, _: reader._stack.append(reader._above_mark()),
    "DICT": lambda reader, _: reader._stack.append(entries(reader._above_mark())),
    "APPEND": lambda reader, _: reader._extend([reader._stack.pop()]),
    "APPENDS": lambda reader, _: reader._extend(reader._above_mark()),
    "ADDITEMS": lambda reader, _: reader._extend(reader._above_mark()),
    "SETITEM": _step_setitem,
    "SETITEMS": lambda reader, _: reader._set(reader._above_mark()),
    "GLOBAL": lambda reader, argument: reader._stack.append(Global(argument.replace(" ", "."))),
    "STACK_GLOBAL": PickleReader._step_stack_global,
    "REDUCE": PickleReader._step_reduce,
    "NEWOBJ": PickleReader._step_reduce,
    "NEWOBJ_EX": PickleReader._step_newobj_ex,
    "INST": PickleReader._step_inst,
    "OBJ": PickleReader._step_obj,
    "BUILD": PickleReader._step_build,
    "PERSID": lambda reader, argument: reader._stack.append(reader._persistent(argument)),
    "BINPERSID": lambda reader, _: reader._stack.append(reader._persistent(reader._stack.pop())),
    **{
        f"EXT{size}": lambda reader, argument: reader._stack.append(Global(f"copyreg.{argument}")) for size in (1, 2, 4)
    },
}
