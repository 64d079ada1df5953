"""Images in: the shipped digits, folders, archives, or random inputs, prepared as the model wants them."""

from senseapp.data.images import ImageSet, TensorImages
from senseapp.data.load import draw, load_images

__all__ = ["ImageSet", "TensorImages", "draw", "load_images"]
