"""Ratios measured side by side: ours, fasterai 0.3.2, the plain loop, and the floor."""
