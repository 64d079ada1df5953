"""Segmentation and detection: what exact measurement costs, quick scans, few bits, intervals, and files in int8."""
