"""The Analyze page: model, images, compression, start."""
