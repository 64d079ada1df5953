"""The quick scan: an estimate for every layer and level from one backward pass."""

from senseapp.sensitivity.quick.scan import quick_scan

__all__ = ["quick_scan"]
