"""Values that are stored and shown: settings of runs, measurements, profiles, schedules. No torch."""
