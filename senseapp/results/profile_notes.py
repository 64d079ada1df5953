"""What a person should know about the counts of a model before trusting them."""

from __future__ import annotations

from senseapp.compressions import get
from senseapp.results.profile import ModelProfile

_NAMED = 3
_LEAST_SHARE = 0.0005  # of all parameters: what rounds to 0.0 % is in the table only


def counting_notes(profile: ModelProfile, compression: str) -> tuple[str, ...]:
    """Return what is not analysed of the model, and which savings ``compression`` does not bring."""
    notes = (unlisted_note(profile), standardised_note(profile) if get(compression).zeroes_weights else "")
    return tuple(note for note in notes if note)


def unlisted_note(profile: ModelProfile) -> str:
    """Say which weights belong to no layer: "3 weights (12.0 % of the parameters) are used without a layer …"."""
    share = sum(item.num_params for item in profile.unlisted) / max(1, profile.num_params)
    names = [f"{item.module}.{name}".lstrip(".") for item in profile.unlisted for name in item.parameters]
    if share < _LEAST_SHARE:
        return ""
    subject, verb = ("weight", "is") if len(names) == 1 else ("weights", "are")
    return (
        f"{len(names)} {subject} ({100 * share:.1f} % of the parameters) {verb} used without a layer and "
        f"{verb} not analysed: {_listed(names)}."
    )


def standardised_note(profile: ModelProfile) -> str:
    """Say whose zeros save no multiply-accumulates; empty if all weights are multiplied as they are."""
    names = [layer.name for layer in profile.layers if layer.runs and not layer.keeps_zeros]
    if not names:
        return ""
    whose = "The weight of 1 layer is" if len(names) == 1 else f"The weights of {len(names)} layers are"
    return (
        f"{whose} standardised at each call ({_listed(names)}), so zeros do not stay zeros: they save parameters of "
        "the file but no MACs, unless whole filters are zero."
    )


def _listed(names: list[str]) -> str:
    return ", ".join(names[:_NAMED]) + (", …" if len(names) > _NAMED else "")
