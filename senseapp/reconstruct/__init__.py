"""Schedules applied to networks, and repair or adaptation of the compressed weights."""
