"""Private and undocumented names of libraries, one module per library.

Nothing else in senseapp uses such a name. ``tests/unit/compat/test_compat.py`` checks the expected behaviour of
each, so that an upgrade fails there, with a sentence. ``make upgrade-check`` runs it with the newest versions.
"""
