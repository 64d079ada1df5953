"""Closed-form weight updates that compensate for compression."""
