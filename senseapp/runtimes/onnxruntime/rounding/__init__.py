"""How an int8 file rounds: the ranges of its activations, and weights that do least harm, from calibration images."""
