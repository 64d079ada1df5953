"""Sources of networks: catalogues, checkpoints, demos."""
