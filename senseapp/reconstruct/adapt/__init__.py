"""Weights that make up, in closed form, for what compression took from a network."""
