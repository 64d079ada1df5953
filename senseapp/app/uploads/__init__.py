"""Uploaded files per browser session: owner, path, expiry."""
