"""Private and undocumented names of libraries, one module each; ``tests/unit/compat`` checks their behaviour."""
