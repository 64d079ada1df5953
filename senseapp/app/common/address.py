"""Settings of a page as part of its address.

A link, a reload, the browser's back and a second tab keep the settings. Each is described once, where its widget is
drawn::

    st.slider("Target", 1, 99, **bound(run_id, "target", whole(1, 99), usual=50))

The address holds every setting that differs from its usual value. It is written when a setting changes, which is no
step of the browser's history (``page_opened.js``), and read when a page is opened or the browser goes back or forward.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from senseapp.app.common.state import RUN_PARAMETER, Visit, kept, session
from senseapp.compat.streamlit_internals import page_id, went_through_history
from senseapp.core.texts import distinct

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Form(Generic[T]):
    """How the values of a setting are written in the address.

    ``write`` returns the text of a value, ``read`` the value of a text; both raise ValueError for one that is not
    allowed.
    """

    write: Callable[[T], str]
    read: Callable[[str], T]


def named(values: Mapping[str, T]) -> Form[T]:
    """Return the form of a choice among ``values``, by their text in the address."""

    def write(chosen: T) -> str:
        for text, value in values.items():
            if value == chosen:
                return text
        raise ValueError("not among the values")

    def read(text: str) -> T:
        if text not in values:
            raise ValueError("not among the values")
        return values[text]

    return Form(write, read)


def one_of(values: Iterable[T]) -> Form[T]:
    """Return the form of a choice among ``values``, written in lower case with ``-`` for spaces."""
    return named({str(value).lower().replace(" ", "-"): value for value in values})


_SEPARATOR = "~"  # of several values in one setting


def some_of(values: Iterable[str]) -> Form[list[str]]:
    """Return the form of a list of different ``values``."""
    one = named({value: value for value in values})

    def read(text: str) -> list[str]:
        found = [one.read(part) for part in text.split(_SEPARATOR)]
        if len(set(found)) < len(found):
            raise ValueError("a value is repeated")
        return found

    return Form(lambda chosen: _SEPARATOR.join(map(one.write, chosen)), read)


def number(least: float = -math.inf, most: float = math.inf) -> Form[float]:
    """Return the form of a number between two bounds, both allowed."""

    def checked(value: float) -> float:
        if not least <= value <= most or not math.isfinite(value):
            raise ValueError("out of range")
        return value

    return Form(lambda value: f"{checked(value):.10g}", lambda text: checked(float(text)))


def whole(least: int, most: int) -> Form[int]:
    """Return the form of a whole number between two bounds, both allowed."""
    within = number(least, most)
    return Form(lambda value: within.write(int(value)), lambda text: int(within.read(str(int(text)))))


def span(end: Form[T]) -> Form[tuple[T, T]]:
    """Return the form of a pair of values, of which each end has the form ``end``."""

    def read(text: str) -> tuple[T, T]:
        low, high = text.split(_SEPARATOR)
        return end.read(low), end.read(high)

    return Form(lambda pair: _SEPARATOR.join(map(end.write, pair)), read)


ASKED_SETTINGS = ("for", "tolerated", "promised")  # what the decision of a run depends on
SWITCH: Form[bool] = named({"yes": True, "no": False})
"""The form of a switch."""


def _checked_words(text: str) -> str:
    if len(text) > _LONGEST or not text.isprintable():
        raise ValueError("too long, or not printable")
    return text


_LONGEST = 200  # characters of a typed text
WORDS = Form(_checked_words, _checked_words)
"""The form of a typed text of printable characters."""


def bound(scope: str, name: str, form: Form[T], usual: T, *, key: str = "") -> dict[str, Any]:
    """Return the arguments of the widget of a setting, which is drawn next; it takes no default value besides.

    What the widget holds can be read from ``st.session_state`` from here on.

    Args:
        scope: id of the run that the setting is of; the path of a page whose settings are not of one run.
        name: of the setting in the address; one scope has one setting of a name.
        form: how it is written there; texts that it does not read are not shown again, and said not to be known.
        usual: value without a text in the address.
        key: of the widget, if it has one of its own.
    """
    key = key or f"{name}.{scope}"
    texts, known = session().addressed.setdefault(scope, {}), session().bound.setdefault(scope, {})
    visit, (drawn, before) = this_visit(), known.get(name, (None, None))
    is_first = texts and all(number != visit.number for number, _ in known.values())
    if is_first and not visit.went_back and not any(other in st.query_params for other in known):
        write_address(scope, texts)  # a link without any of the settings leaves those of this session as they are
    linked = st.query_params.get(name, "") if _is_here(scope) else texts.get(name, "")
    held = texts.get(name, "") if name in known else linked  # in the links that are drawn already
    text = _text(form, st.session_state[key]) if key in st.session_state else None
    if text is None or (drawn not in (None, visit.number) and linked != texts.get(name, "")):
        value, asked = _asked(name, form, linked, usual)
        st.session_state[key], text = value, form.write(value)
        _keep(texts, {name: asked})
    elif before != text:
        _keep(texts, {name: "" if st.session_state[key] == usual else text})
    if drawn != visit.number:  # the widget of another page has the same key
        st.session_state[key] = st.session_state[key]
    known[name] = visit.number, text
    if linked != texts.get(name, ""):
        write_address(scope, {name: texts.get(name, "")})
    if name in ASKED_SETTINGS and (linked, held) != (texts.get(name, ""),) * 2:
        st.rerun()  # the whole page, also from a fragment: links and the report are about the same decision
    return kept(key)


def choose(
    label: str,
    options: Mapping[T, str] | Sequence[T],
    usual: T,
    scope: str,
    name: str,
    *,
    place: DeltaGenerator | None = None,
    is_list: bool = False,
    **look: Any,
) -> T:
    """Show a choice among ``options`` (with their texts, if those differ) as buttons, or as a list that unfolds.

    ``scope`` and ``name`` are those of :func:`bound`; ``look`` are further arguments of Streamlit's widget.
    """
    row = place or st
    texts = distinct(options if isinstance(options, Mapping) else {option: str(option) for option in options})
    look |= bound(scope, name, one_of(options), usual) | {"format_func": lambda value: texts.get(value, "")}
    pick = row.selectbox if is_list else partial(row.segmented_control, required=True)
    chosen: T = pick(label, list(options), **look)
    return chosen if chosen in texts else usual


def setting(scope: str, name: str, form: Form[T], usual: T) -> T:
    """Return a setting of a run as it was chosen last, without a widget; ``usual`` where it was not."""
    here = bool(scope) and st.query_params.get_all(RUN_PARAMETER) == [scope]
    text = st.query_params.get(name, "") if here else session().addressed.get(scope, {}).get(name, "")
    with suppress(ValueError):
        return form.read(text) if text else usual
    return usual


def this_visit() -> Visit:
    """Return the visit of a page that is going on; going to another page or run, or back, begins the next."""
    last, page, back = session().visit, page_id(), went_through_history()
    scope = st.query_params.get(RUN_PARAMETER, "") or session().last_run
    query = "&".join(f"{name}={text}" for name, text in st.query_params.items()) if back else ""
    if (last.page, last.scope) != (page, scope) or (back and last.query != query):
        session().visit = Visit(number=last.number + 1, page=page, scope=scope, went_back=back, query=query)
    return session().visit


def follow(run_id: str, names: Iterable[str]) -> None:
    """Keep settings of one run in the address of Compare: as this session drew them, else as the link has them."""
    texts, drawn = session().addressed.setdefault(run_id, {}), session().bound.get(run_id, {})
    for name in names:
        linked, text = st.query_params.get(name, ""), texts.get(name, "")
        text = text if name in drawn else linked or text
        _keep(texts, {name: text})
        if text != linked:
            write_address("compare", {name: text})


def hold(scope: str, names: Iterable[str]) -> None:
    """Put settings as they were drawn last into the address: the next page shows them, whatever is usual there."""
    known = session().bound.get(scope, {})
    write_address(scope, {name: known[name][1] for name in names if name in known})


def address_of(scope: str) -> dict[str, str]:
    """Return the query of a link to a run as it was looked at last, or to a page; empty without a run."""
    known, texts = session().bound.get(scope, {}), session().addressed.get(scope, {})
    if st.query_params.get_all(RUN_PARAMETER) == [scope]:
        texts = {name: text for name, text in st.query_params.items() if name not in known} | texts
    return {RUN_PARAMETER: scope, **texts} if _is_run(scope) else dict(texts)


def _is_run(scope: str) -> bool:
    return bool(scope) and scope not in ("analyze", "compare", "runs")


def _is_here(scope: str) -> bool:
    """Return whether the address is of this run, or of a page whose settings are not of one run."""
    return not _is_run(scope) or st.query_params.get(RUN_PARAMETER, "") in ("", scope)


def _text(form: Form[T], value: T) -> str | None:
    try:
        return form.write(value)
    except (ValueError, TypeError):  # no longer offered
        return None


def _asked(name: str, form: Form[T], linked: str, usual: T) -> tuple[T, str]:
    """Return the value that the address asks for, and the text that it is to have there."""
    if linked:
        try:
            found = form.read(linked)
            return found, "" if found == usual else linked
        except ValueError:
            st.toast(f"The address asks for a value of “{name}” that is not offered here; the usual one is shown.")
    return usual, ""


def _keep(kept_texts: dict[str, str], texts: Mapping[str, str]) -> None:
    for name, text in texts.items():
        if text:
            kept_texts[name] = text
        else:
            kept_texts.pop(name, None)


def write_address(scope: str, texts: Mapping[str, str]) -> None:
    """Put the texts into the address, all at once."""
    _keep(session().addressed.setdefault(scope, {}), texts)
    if not _is_here(scope):
        return
    query: dict[str, Any] = {name: st.query_params.get_all(name) for name in st.query_params}
    if _is_run(scope):
        query[RUN_PARAMETER] = scope
    st.query_params.from_dict({name: text for name, text in (query | dict(texts)).items() if text})
