"""Schedules: one level per layer under a budget. Curves, problems, methods; no torch."""
