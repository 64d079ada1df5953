"""Images in: the shipped digits, folders, archives, or random inputs, prepared as the model wants them."""

from senseapp.data.images import ImageSet, TensorImages
from senseapp.data.load import draw, load_images
from senseapp.data.pictures import ImageSurvey, survey_images
from senseapp.data.preparation import effective_preprocessing
from senseapp.data.prepared import PreparedImages
from senseapp.data.preview import Preview, preview

__all__ = [
    "ImageSet",
    "ImageSurvey",
    "PreparedImages",
    "Preview",
    "TensorImages",
    "draw",
    "effective_preprocessing",
    "load_images",
    "preview",
    "survey_images",
]
