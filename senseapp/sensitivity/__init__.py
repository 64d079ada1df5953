"""Measure what compressing each layer does: exactly by prefix replay, or estimated from one backward pass."""

from senseapp.sensitivity.layout import Layout
from senseapp.sensitivity.quick import quick_scan
from senseapp.sensitivity.reuse import arithmetic_of
from senseapp.sensitivity.session import Session
from senseapp.sensitivity.sweep import Sweep, measure

__all__ = ["Layout", "Session", "Sweep", "arithmetic_of", "measure", "quick_scan"]
