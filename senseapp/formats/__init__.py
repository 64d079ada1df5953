"""Files of schedules for other tools, and our own."""
