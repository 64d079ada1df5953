"""Server: queue, job process, results, limits."""
