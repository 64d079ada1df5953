"""Named presets of a page's settings: choose, save and delete one."""

from __future__ import annotations

import streamlit as st

from senseapp.app.common import backend
from senseapp.app.common.address import set_address, settings_of
from senseapp.app.common.notices import complain, errors_here
from senseapp.core.errors import SenseError

_NAME_LIMIT = 60


def presets_button(page: str, scope: str) -> None:
    """Offer the presets of ``page``, to be called after its settings were drawn; nothing for who cannot keep any.

    What a preset does not say gets its usual value. ``scope`` is that of the settings, see
    :func:`senseapp.app.common.address.bound`.
    """
    if not backend.visitor().is_known:
        return
    with st.popover("Presets", icon=":material/bookmark:", help="Settings that you keep under a name."), errors_here():
        saved = backend.service().presets(page)
        if saved:
            chosen = st.selectbox("Preset", list(saved), key=f"presets.chosen.{page}")
            row = st.container(horizontal=True)
            if chosen in saved:
                take = settings_of(scope) | saved[chosen]
                row.button(
                    "Use it",
                    key=f"presets.use.{page}",
                    type="primary",
                    on_click=set_address,
                    args=(scope, {name: saved[chosen].get(name, "") for name in take}),
                )
                row.button("Delete it", key=f"presets.delete.{page}", on_click=_delete, args=(page, chosen))
        else:
            st.caption("No preset yet. Save the settings of this page under a name to use them for other runs.")
        name_key = f"presets.name.{page}"
        st.text_input("Name", key=name_key, max_chars=_NAME_LIMIT, placeholder="For the phone")
        settings = {name: text for name, text in settings_of(scope).items() if text}
        st.button("Save these settings", key=f"presets.save.{page}", on_click=_save, args=(page, name_key, settings))
        if refused := st.session_state.pop(f"presets.refused.{page}", ""):
            complain(refused)


def _save(page: str, name_key: str, settings: dict[str, str]) -> None:
    try:
        backend.service().save_preset(page, st.session_state[name_key], settings)
        st.session_state[name_key] = ""
    except SenseError as error:
        st.session_state[f"presets.refused.{page}"] = str(error)


def _delete(page: str, name: str) -> None:
    try:
        backend.service().delete_preset(page, name)
    except SenseError as error:
        st.session_state[f"presets.refused.{page}"] = str(error)
