"""Measurement on a Ray cluster."""
