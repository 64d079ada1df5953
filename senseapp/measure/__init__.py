"""Sensitivity measurement: replay, sweep, histograms; independent of the app."""
