"""One uploaded picture, prepared for a network."""

from __future__ import annotations

from pathlib import Path

from senseapp.core.errors import InvalidDataset
from senseapp.core.files import storage_errors
from senseapp.core.texts import printable
from senseapp.data.contents import Unreadable
from senseapp.data.decoding import PixelSemaphore
from senseapp.data.drawn_pictures import DrawnPictures
from senseapp.data.images import PreparedImages, channel_mode, transform_of
from senseapp.data.per_image import allocate_rows
from senseapp.data.picture_process import DECODERS
from senseapp.data.reading import PIXELS_IN_FLIGHT, read_picture
from senseapp.networks.loaded import Preprocessing
from senseapp.records.answers import MOST_PICTURE_MEGABYTES


def prepared_picture(path: Path, preprocessing: Preprocessing, *, upright: bool = False) -> PreparedImages:
    """Read one picture in a process that can be ended, and prepare it like the pictures of a folder.

    Raises:
        InvalidDataset: the file is gone, too large, or no picture that can be used.
    """
    name = printable(path.name)
    with storage_errors("the picture"):
        if not path.is_file():
            raise InvalidDataset("The picture is no longer on this server. Choose it again.")
        if path.stat().st_size > MOST_PICTURE_MEGABYTES * 1_000_000:
            raise InvalidDataset(f"A picture may have up to {MOST_PICTURE_MEGABYTES} MB, and {name} has more.")
        file = path.read_bytes()
    try:
        outcome = read_picture(
            file,
            mode=channel_mode(preprocessing),
            channels=preprocessing.input_shape[0],
            transform=transform_of(preprocessing, upright=upright),
            budget=PixelSemaphore(PIXELS_IN_FLIGHT),
            foreign=True,
        )
    finally:
        DECODERS.rest()
    if isinstance(outcome, Unreadable):
        raise InvalidDataset(
            f"{name} cannot be used as a picture: {outcome}. Choose another, or save it again as JPEG or PNG."
        )
    drawn = DrawnPictures(allocate_rows(1, preprocessing.input_shape))
    drawn.add(0, *outcome)
    return PreparedImages(drawn.pixels, preprocessing, names=(name,), notes=drawn.notes())
