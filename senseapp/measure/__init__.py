"""Sensitivity measurement: replay, sweep, histograms; nothing here knows the app."""
