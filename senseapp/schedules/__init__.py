"""Schedules per layer: solve, apply, prove, repair, write."""
