"""Undocumented names of Altair."""

from altair.utils.schemapi import disable_debug_mode


def build_unchecked() -> None:
    """Skip the schema check of every part of a chart while it is built, which takes most of the time."""
    disable_debug_mode()
