"""Proofs on held-out images, recommendations, and deployed files."""
