"""Thresholds by which boxes are counted; plain values, so that reading them loads no numpy."""

from __future__ import annotations

THRESHOLDS = (*((0.95 - 0.5) / 9 * place + 0.5 for place in range(9)), 0.95)
"""Overlaps, as IoU, at which average precision is averaged: those of pycocotools, bit for bit."""
AREAS = {
    "all": (0.0, 1e10),
    "small": (0.0, 32.0**2),
    "medium": (32.0**2, 96.0**2),
    "large": (96.0**2, 1e10),
}
"""Ranges of areas, in square pixels of the network's input."""
MOST_DETECTIONS = 100
"""Of one image and class, those of the highest scores."""
LEAST_SCORE = 0.02
"""Of a detection that average precision counts."""
SURE_SCORE = 0.3
"""Of a detection that is shown, and that counts as an object of the original model."""
FOUND = 0.5
"""Overlap, as IoU, from which an object counts as found."""
SAME_BOX = 0.5
"""Overlap, as IoU, above which non-maximum suppression keeps the higher score of two boxes of one class."""
