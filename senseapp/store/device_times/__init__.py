"""Reports that other tools write of a network on a device: one module per tool, each a line of the registry."""
