"""Altair charts of frames, and the files that they are saved as."""
