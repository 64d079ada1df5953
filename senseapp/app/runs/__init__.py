"""The Runs page: list, import, progress."""
