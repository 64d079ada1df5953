"""One level per layer for a budget: curves, problems, methods; no torch."""
