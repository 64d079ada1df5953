"""Layers of a network: trace, profile, products of weights, batch axes."""
