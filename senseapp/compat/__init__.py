"""What the libraries do not promise: their private and undocumented names, one module per library.

Nothing else in senseapp uses such a name. ``tests/unit/test_compat.py`` holds what each is relied on for, so that an
upgrade fails there, with a sentence. ``make upgrade-check`` runs it with the newest versions.
"""
