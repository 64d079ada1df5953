"""Runs of the service: queue, job process, results, limits."""
