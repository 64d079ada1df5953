"""Schedules applied to networks, and weights that are repaired or adapted to make up for it."""
