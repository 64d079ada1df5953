"""Long forms of tests. ``make soak`` runs them, and ``docs/RELIABILITY.md`` has their figures."""
