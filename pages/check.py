"""Check a file: any file against a reference, whoever made it."""

import streamlit as st

from senseapp.app.check import PARAMETER, check_form, recent_checks, shown_check
from senseapp.app.common.notices import errors_here

with st.container(horizontal_alignment="center"), st.container(width=960):
    st.title("Check a file", anchor=False)
    st.markdown(
        "Does a compressed file still do what the original does? Bring both, whoever made them, and images: senseapp "
        "measures the loss with a bound that holds on new images, the time, and where the files part first."
    )
    with errors_here():
        check_id = st.query_params.get(PARAMETER, "")
        if check_id:
            shown_check(check_id)
        else:
            check_form()
        recent_checks(check_id)
