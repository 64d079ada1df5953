"""The Results page: one module per tab."""
