"""Rewrites of a graph between its file and its modules: functions of a graph that return another one of equal values.

``folding.py`` computes what no image changes, ``batch.py`` frees a batch that an export has fixed, ``activations.py``
makes one node of activations that are written as several.
"""
