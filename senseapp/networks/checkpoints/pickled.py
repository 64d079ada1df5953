"""Pickle reader that treats a pickle as data: :class:`pickle.Unpickler`, with an inert stub for each name in it.

Unpickling builds objects by calling what the file names. Here no name is looked up: the few functions of ``builders``
(tensors) replace those of the same names, and each object of another class becomes a :class:`Record` of its
arguments and state. Nothing else can be called, as only stubs and the values of ``builders`` are ever on the stack.

Before it is loaded, a pickle is scanned for what takes time or memory without limit: its instructions are counted,
each tuple with the number of values that hashing it visits, so that tuples that hold each other twice end soon.
"""

import io
import pickle
import pickletools
from collections.abc import Callable, Iterable, Mapping
from typing import IO, Any, Self

MAX_STEPS = 4_000_000
"""A named tensor takes about 100."""
_REFUSED = frozenset({"EXT1", "EXT2", "EXT4", "NEXT_BUFFER", "READONLY_BUFFER"})
"""Instructions for objects outside of the pickle, which torch does not write."""
_TUPLES = frozenset({"TUPLE", "TUPLE1", "TUPLE2", "TUPLE3"})
_WEIGHTS = {"mark": None, "list": 1, "dict": 1, "set": 1}
"""Of values that cannot be hashed, by the name of their kind; None for a mark."""

Builder = Callable[..., object]


class Named(type):
    """A stub for a class or function: its dotted ``name``, which is not looked up."""

    name: str = ""
    builder: Builder
    recorded: set[str]


class Built:
    """Base of the values of builders; further state is ignored, and sets no attribute."""

    __slots__ = ()

    def __setstate__(self, state: object) -> None:
        """Ignore what unpickling would set."""


class BuiltDict(dict[Any, object], Built):
    """Content of a dict whose attributes are ignored."""

    __slots__ = ()


class _BuiltByName(Built, metaclass=Named):
    """Base of the stubs of names that a builder replaces."""

    def __new__(cls, *arguments: object) -> Any:
        return cls.builder(*arguments)


class Record(metaclass=Named):
    """An object of an unknown class: the name of the class, and the values to build it from.

    Attributes:
        name: dotted name of the class, or of the function that returned it.
        arguments: of its constructor.
        state: mostly its attributes, as a dict.
        items: its entries, if its class is a kind of dict.
        values: its elements, if it is a kind of list.
    """

    __slots__ = ("arguments", "items", "state", "values")
    name: str
    arguments: tuple[object, ...]
    state: object
    items: dict[Any, object]
    values: list[object]

    def __new__(cls, *arguments: object, **keywords: object) -> Self:
        """Record a call of the class, or of the function."""
        cls.recorded.add(cls.name)
        made = object.__new__(cls)
        made.arguments, made.state, made.items, made.values = arguments, keywords or None, {}, []
        return made

    def __call__(self, *arguments: object) -> Self:
        """Record a call of what an unknown function returned."""
        return type(self)(*arguments)

    def __setstate__(self, state: object) -> None:
        """Keep the state that unpickling would set."""
        self.state = state

    def __setitem__(self, key: object, value: object) -> None:
        """Keep an entry of a kind of dict."""
        self.items[key] = value

    def append(self, value: object) -> None:
        """Keep an element of a kind of list."""
        self.values.append(value)

    def extend(self, values: Iterable[object]) -> None:
        """Keep elements of a kind of list."""
        self.values.extend(values)


class PickleReader:
    """Reads the pickles of one file; steps are counted over all of them.

    Attributes:
        recorded: names of the classes and functions whose objects became records.
    """

    def __init__(self, builders: Mapping[str, Builder], persistent: Callable[[object], object]) -> None:
        """``builders`` build the values of some names; ``persistent`` returns those referred to by an id."""
        self.recorded: set[str] = set()
        self._builders = builders
        self._persistent = persistent
        self._steps = 0
        self._named: dict[str, Named] = {}

    def read(self, file: IO[bytes]) -> object:
        """Return the value of one pickle, from the position of ``file``, which is seekable, to the pickle's end.

        Raises ValueError if the pickle is incomplete, or takes too many steps.
        """
        start = file.tell()
        try:
            self._scan(file)
            length = file.tell() - start
            file.seek(start)
            unpickler = _Unpickler(io.BytesIO(file.read(length)), encoding="latin1")  # bytes of Python 2
            unpickler.find, unpickler.persistent = self._find, self._persistent
            return unpickler.load()
        except (pickle.UnpicklingError, EOFError, IndexError, KeyError, TypeError, AttributeError) as error:
            raise ValueError("its pickle takes more values than it makes") from error

    def _scan(self, file: IO[bytes]) -> None:
        """Count the steps of a pickle: one for an instruction, and for a tuple one for each value below it.

        The stack holds one number for each value: how many values its hash visits; None is a mark.
        """
        stack: list[int | None] = []
        memo: dict[object, int | None] = {}
        for opcode, argument, _ in pickletools.genops(file):
            name = opcode.name
            # hashing a number of more bits takes time at each use
            if name in _REFUSED or (isinstance(argument, int) and argument.bit_length() > 8_000):
                raise ValueError(f"it holds {name}, which torch does not write")
            taken = _taken(stack, opcode.stack_before)
            weight = 1 + sum(taken) if name in _TUPLES else max(taken, default=1)  # a tuple visits all below it
            pushed = memo[argument] if name.endswith("GET") else weight
            stack += [_WEIGHTS.get(kind.name, pushed) for kind in opcode.stack_after]
            if name.endswith("PUT") or name == "MEMOIZE":
                memo[len(memo) if name == "MEMOIZE" else argument] = stack[-1]
            self._steps += max(1, (pushed or 0) * len(opcode.stack_after))
            if self._steps > MAX_STEPS or (name.endswith("PUT") and int(argument or 0) > MAX_STEPS):
                raise ValueError(f"more than {MAX_STEPS:,} steps to build what is in it")

    def _find(self, name: str) -> Named:
        if name not in self._named:
            # names of torch are far shorter; each stub takes a kilobyte
            if len(name) > 300 or len(self._named) >= 5_000:
                raise ValueError("its pickle names a class by what is no name, or too many classes")
            builder = self._builders.get(name)
            content: dict[str, Any] = {"__slots__": (), "name": name, "recorded": self.recorded}
            base: type = Record
            if builder is not None:
                base, content = _BuiltByName, {**content, "builder": staticmethod(builder)}
            self._named[name] = Named("Named", (base,), content)
        return self._named[name]


def _taken(stack: list[int | None], kinds: list[pickletools.StackObject]) -> list[int]:
    """Remove what an instruction takes from the stack; return the numbers of the values."""
    values: list[int | None] = []
    if pickletools.markobject in kinds:
        while (value := stack.pop()) is not None:
            values.append(value)
        kinds = kinds[: kinds.index(pickletools.markobject)]
    values += [stack.pop() for _ in kinds]
    return [value for value in values if value is not None]


class _Unpickler(pickle.Unpickler):
    """The standard unpickler, in which names are stubs."""

    find: Callable[[str], Named]
    persistent: Callable[[object], object]

    def find_class(self, module: str, name: str) -> Any:
        module = module.replace("__builtin__", "builtins").replace("numpy._core", "numpy.core")  # Python 2, NumPy 2
        return self.find(f"{module}.{name}")

    def persistent_load(self, pid: Any) -> Any:
        return self.persistent(pid)
