"""What everything may import: errors, codec, levels, files, processes."""
