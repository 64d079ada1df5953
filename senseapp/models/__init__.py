"""Networks: libraries, checkpoints, recognition."""
