"""Foundations that every room may import: errors, codec, levels, files, processes."""
