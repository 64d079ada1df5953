"""The Schedule page: settings, layers, trade-off, proof, downloads."""
