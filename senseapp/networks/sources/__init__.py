"""Where networks come from: catalogues, checkpoints, demos."""
