"""Images: folders, archives, image sets, labels, preprocessing."""
