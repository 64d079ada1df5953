"""The Run page: progress and log."""
