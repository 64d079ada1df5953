"""Rounding of an int8 file: ranges of activations, and weights of least damage, from calibration images."""
