"""Target files of schedules, one module per format."""
