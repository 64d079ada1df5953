"""The names in a sensitivity table and those of a model: which rows are about which layer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from senseapp.errors import InvalidFile
from senseapp.exchange.distiller_table import DistillerRow
from senseapp.exchange.run_file_checks import harmless
from senseapp.results import ModelProfile

_INNER_WRAPPER = ".module."  # Distiller wraps only the features of AlexNet and VGG: features.module.0.weight
_STRANGERS_SHOWN = 3
_EXPECTED_SHOWN = 2


def match_names(
    by_layer: Mapping[str, list[DistillerRow]], profile: ModelProfile
) -> tuple[dict[str, list[DistillerRow]], str]:
    """Return the rows of the layers that the model has, and one sentence on the others; empty if there are none.

    Raises:
        InvalidFile: the model has none of them.
    """
    known = {layer.name for layer in profile.layers}
    renamed = {_name_in(known, name, by_layer): rows for name, rows in by_layer.items()}
    strangers = [name for name in renamed if name not in known]
    if not strangers:
        return renamed, ""
    expected = [name for name in (layer.name for layer in profile.layers) if name not in renamed] or sorted(known)
    if len(strangers) == len(renamed):
        raise InvalidFile(
            f"None of the {len(renamed)} parameters is in {profile.title}: the table has {_listed(strangers)}, but "
            f"names such as {_examples(expected)} were expected; choose the model that was measured, or import "
            "without one."
        )
    kept = {name: rows for name, rows in renamed.items() if name in known}
    return kept, _sentence(strangers, expected, num_named=len(renamed), title=profile.title)


def _name_in(known: set[str], name: str, taken: Iterable[str]) -> str:
    """Return the model's name for a parameter, or the table's own where the model has none."""
    unwrapped = name.replace(_INNER_WRAPPER, ".")
    return unwrapped if name not in known and unwrapped in known and unwrapped not in taken else name


def _sentence(strangers: Sequence[str], expected: Sequence[str], *, num_named: int, title: str) -> str:
    verbs = ("is", "was") if len(strangers) == 1 else ("are", "were")
    return (
        f"{len(strangers)} of the {num_named} parameters {verbs[0]} not in {title} and {verbs[1]} left out "
        f"({_listed(strangers)}), where names such as {_examples(expected)} were expected; if another model was "
        "measured, import the table again with that one."
    )


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _STRANGERS_SHOWN} more" if len(names) > _STRANGERS_SHOWN else ""
    return ", ".join(harmless(name) for name in names[:_STRANGERS_SHOWN]) + more


def _examples(names: Sequence[str]) -> str:
    return " and ".join(names[:_EXPECTED_SHOWN])
