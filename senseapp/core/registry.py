"""Registries that other packages can extend, read from entry points in every process alike; values grouped by key."""

import logging
import threading
from collections.abc import Callable, Hashable, Iterable, Iterator, MutableMapping, Sequence
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any, ClassVar, Protocol, TypeVar

from senseapp.core.errors import InvalidSpec

_log = logging.getLogger(__name__)


class Named(Protocol):
    """An item of a registry."""

    @property
    def name(self) -> str:
        """Name in files and on the command line."""


NamedT = TypeVar("NamedT", bound=Named)


class Registry(MutableMapping[str, NamedT]):
    """Objects by name: senseapp's own in their order, then those of installed packages, then those set by hand.

    They are loaded on first access, so that a registry may name modules that import its own. Errors call an item by
    ``noun``. ``own`` are ``module:name`` of senseapp's own, ``group`` the entry points of others, ``filled_by`` a
    registry whose objects add some to this one; ``added`` is called with each that is loaded or set.
    """

    _lock: ClassVar = threading.RLock()  # one for all, as they fill each other

    def __init__(
        self,
        noun: str,
        *,
        group: str,
        own: Sequence[str] = (),
        added: Callable[[NamedT], None] = lambda _item: None,
        filled_by: str = "",
    ) -> None:
        self._noun, self._group, self._own, self._added, self._filled_by = noun, group, own, added, filled_by
        self._items: dict[str, NamedT] = {}
        self._is_loading = self._is_loaded = False

    def named(self, name: str) -> NamedT:
        """Return the object of that name; InvalidSpec, with the existing names, if there is none."""
        try:
            return self[name]
        except KeyError:
            raise InvalidSpec(f"The {self._noun} must be one of {', '.join(self)}, got {name!r}.") from None

    def register(self, item: NamedT) -> None:
        """Add ``item`` at the end; one of the same name is replaced."""
        self[item.name] = item

    def _loaded(self) -> dict[str, NamedT]:
        if self._is_loaded:
            return self._items
        with self._lock:
            if not self._is_loading:  # in this thread, as loading modules may access the items before them
                self._is_loading = True
                try:
                    self._load()
                finally:
                    self._is_loading = False
                self._is_loaded = True
        return self._items

    def _load(self) -> None:
        for item in (*map(object_at, self._own), *self._installed()):
            self._items.setdefault(item.name, item)
            self._added(item)
        if self._filled_by:
            len(object_at(self._filled_by))

    def _installed(self) -> Iterator[NamedT]:
        """Yield the items of other packages; one that cannot be loaded is logged and does not affect others."""
        for each in entry_points(group=self._group):
            try:
                yield each.load()
            except Exception:  # code of other packages may raise anything
                _log.exception("the %s %r of another package cannot be loaded (%s)", self._noun, each.name, each.value)

    def __getitem__(self, name: str) -> NamedT:
        return self._loaded()[name]

    def __setitem__(self, name: str, item: NamedT) -> None:
        self._loaded()[name] = item
        self._added(item)

    def __delitem__(self, name: str) -> None:
        del self._loaded()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._loaded())

    def __len__(self) -> int:
        return len(self._loaded())


def object_at(place: str) -> Any:
    """Return the object at ``module:name``."""
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)


KeyT = TypeVar("KeyT", bound=Hashable)
ValueT = TypeVar("ValueT")


def grouped(pairs: Iterable[tuple[KeyT, ValueT]]) -> dict[KeyT, list[ValueT]]:
    """Return the values of each key; keys and values are in the order in which they come first.

    >>> grouped([("conv", 8), ("fc", 4), ("conv", 2)])
    {'conv': [8, 2], 'fc': [4]}
    """
    found: dict[KeyT, list[ValueT]] = {}
    for key, value in pairs:
        found.setdefault(key, []).append(value)
    return found
