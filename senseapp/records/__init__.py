"""Values that are stored and shown: settings of runs, measurements, profiles, schedules. No torch.

``notes`` of any of them are sentences that a person should read.
"""
