"""Which preparation of the images suits a model, by paired tests."""
