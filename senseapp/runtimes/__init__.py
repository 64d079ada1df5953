"""Runtimes that files run in: one interface (:mod:`senseapp.runtimes.base`), and a package for each."""
