"""Promised losses beside the truth: simulated deployments, and real files of a network trained on digits."""
