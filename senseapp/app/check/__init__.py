"""Check page: any file against a reference."""
