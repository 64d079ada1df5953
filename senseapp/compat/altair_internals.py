"""Undocumented names of Altair."""

from __future__ import annotations

from altair.utils.schemapi import disable_debug_mode


def build_unchecked() -> None:
    """Do not check every part of a chart against the schema while it is built, which takes most of the time."""
    disable_debug_mode()
