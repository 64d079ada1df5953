"""Runs on disk: database, folders, run files, tables of other tools."""
