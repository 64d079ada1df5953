"""Runtimes that deployed files run in."""
