"""Checkpoints that people upload: their tensors, the architecture they belong to."""
