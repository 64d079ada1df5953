"""Uploaded checkpoints: their tensors, and the architecture that these belong to."""
