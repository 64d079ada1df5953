"""The switch *Expert*: names of metrics, of methods and of counts, for who knows them; kept per person."""

import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

import streamlit as st

from senseapp.app.common import backend
from senseapp.app.common.state import session
from senseapp.core.errors import SenseError
from senseapp.core.markdown import Markdown, md
from senseapp.metrics import METRICS, Metric
from senseapp.records.comparison import Side
from senseapp.records.measurement import RunResult
from senseapp.records.resolution import everyday

_KEY = "account.expert"
# of names in a file, in quotes, all but the title of a run
_FOR_EXPERTS = re.compile(
    r"repair|torch\.onnx|\b(nodes?|tensors?|declared shapes?)\b|all else in|(?<!run )“", re.IGNORECASE
)
_OF_PIXELS = re.compile(
    r"(, values from 0 to 1)?, less (a mean of )?[-\d.e+, ]+, (divided by|over a std of) [-\d.e+]+(, [-\d.e+]+)*"
)


def expert() -> bool:
    """Return whether this person wants expert words and settings; read from the store once a session."""
    known = session().expert
    if known is None:
        known = False
        with suppress(SenseError):  # a home that cannot be read is said at the top of the page
            known = backend.visitor().is_known and backend.service().is_expert()
        session().expert = known
    return known


def expert_toggle(label: str, *, key: str, **look: Any) -> bool:
    """Return a switch of this ``key``, set already, which only experts see; ``look`` are arguments of Streamlit's."""
    return st.toggle(label, key=key, **look) if expert() else bool(st.session_state[key])


def reading_shown(sentences: Iterable[str]) -> list[str]:
    """Return how something is read without mean and deviation of its pixels, which are for experts."""
    return list(sentences) if expert() else [_OF_PIXELS.sub("", sentence) for sentence in sentences]


def notes_shown(notes: Iterable[str], *, of_bits: bool = False) -> list[str]:
    """Return the notes without those for experts: on repair, export or nodes; ``of_bits`` also on removed channels."""
    everyday = (note for note in notes if not (_FOR_EXPERTS.search(note) or (of_bits and "removed channels" in note)))
    return list(notes if expert() else everyday)


def expert_switch() -> None:
    """Show the switch, for the foot of the sidebar."""
    st.session_state[_KEY] = expert()
    about = "Shows the field's terms, all metrics and every setting, in place of everyday words."
    st.toggle("Expert", key=_KEY, on_change=_keep, help=about)


def metric_shown(name: str, result: RunResult | None = None) -> Metric:
    """Return the metric ``name`` in the words of this person: everyday ones, of a ``result``, or terms of the field."""
    if expert():
        return METRICS[name].in_terms
    return METRICS[name] if result is None else everyday(result, name)


def metrics_shown(name: str, sides: Sequence[Side]) -> list[Metric]:
    """Return the metric in the words of each side: in answers where all can be said so, with what each run measured."""
    shown = [metric_shown(name, side.result) for side in sides]
    return shown if len({each.axis for each in shown}) == 1 else [metric_shown(name)] * len(shown)


def metrics_offered(names: Sequence[str], usual: str) -> list[str]:
    """Return those of ``names`` to choose from: without *Expert* the everyday ones, and the ``usual`` one."""
    return [name for name in names if name == usual or METRICS[name].is_everyday or expert()]


def metric_help(shown: Sequence[Metric]) -> Markdown:
    """Return what each of the metrics to choose from says."""
    return md("\n").join(md("- **{}**: {}", each.label, each.help) for each in shown)


def _keep() -> None:
    chosen = bool(st.session_state[_KEY])
    session().expert = chosen
    if backend.visitor().is_known:
        with suppress(SenseError):
            backend.service().set_expert(expert=chosen)
