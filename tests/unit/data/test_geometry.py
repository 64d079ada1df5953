"""Turn, resize and crop: pictures come out as timm makes them, and annotations land where the picture's pixels do."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageOps

from senseapp.data.geometry import TURNS, EvalTransform, Geometry
from senseapp.data.images import pixels_of, transform_of
from senseapp.networks.loaded import Preprocessing
from tests.cases import examples
from tests.pictures import random_picture, timm_crop

SIDES = st.integers(3, 90)
SIZES = st.tuples(SIDES, SIDES).filter(lambda size: max(size) <= 12 * min(size))
TRANSFORMS = st.builds(
    EvalTransform,
    width=st.integers(2, 48),
    height=st.integers(2, 48),
    crop_pct=st.one_of(st.sampled_from((0.875, 0.9, 0.95, 1.0, 1.2)), st.floats(0.4, 1.3)),
    interpolation=st.sampled_from(("nearest", "bilinear", "bicubic")),
    upright=st.just(True),
)
MARKS = st.integers(1, 8)


def marked(picture: Image.Image, mark: int) -> Image.Image:
    """Return the picture with a rotation mark, as a camera writes it."""
    picture.getexif()[0x0112] = mark
    return picture


@given(size=SIZES, transform=TRANSFORMS, mark=MARKS)
@settings(max_examples=examples(60), deadline=None)
def test_a_picture_is_prepared_as_timm_prepares_the_upright_one(size, transform, mark) -> None:
    stored = marked(random_picture(sum(size), size), mark)
    how = Preprocessing(
        input_shape=(3, transform.height, transform.width),
        mean=(0.0,) * 3,
        std=(1.0,) * 3,
        crop_pct=transform.crop_pct,
        interpolation=transform.interpolation,
    )
    assert transform_of(how, upright=True) == transform
    geometry = transform.geometry(size, mark)
    found = pixels_of([geometry.picture(stored, transform.resampling)])
    assert bool((found == timm_crop(ImageOps.exif_transpose(stored), how)).all())
    assert geometry.upright_size == ImageOps.exif_transpose(stored).size


def painted(size: tuple[int, int], mark: int) -> list[Image.Image]:
    """Return upright pictures whose pixels hold the x and the y of their centres in the stored one."""
    rows, columns = np.indices(size[::-1]).astype(np.float32) + 0.5
    upright = (Image.fromarray(axis) for axis in (columns, rows))
    return [axis.transpose(TURNS[mark]) if mark in TURNS else axis for axis in upright]


@given(size=SIZES, transform=TRANSFORMS, mark=MARKS)
@settings(max_examples=examples(60), deadline=None)
def test_coordinates_painted_in_a_picture_are_where_points_land(size, transform, mark) -> None:
    geometry = transform.geometry(size, mark)
    left, top = geometry.corner
    box = (left, top, left + transform.width, top + transform.height)
    painted_x, painted_y = (
        np.asarray(axis.resize(geometry.resized, Image.Resampling.BILINEAR).crop(box)) for axis in painted(size, mark)
    )
    whole, resized = np.array(geometry.upright_size), np.array(geometry.resized)
    margin = (whole / resized).max() + 1
    for row in range(0, transform.height, 5):
        for column in range(0, transform.width, 5):
            x, y = float(painted_x[row, column]), float(painted_y[row, column])
            if not (margin < x < size[0] - margin and margin < y < size[1] - margin):
                continue  # padding, or blurred with the edge
            assert np.abs(geometry.points((x, y)) - (column + 0.5, row + 0.5)).max() < 0.3


@given(size=SIZES, transform=TRANSFORMS, mark=MARKS)
@settings(max_examples=examples(60), deadline=None)
def test_a_mask_takes_the_value_nearest_to_each_centre_and_the_fill_outside(size, transform, mark) -> None:
    geometry = transform.geometry(size, mark)
    found = geometry.mask(np.arange(size[0] * size[1], dtype=np.int32).reshape(size[::-1]), fill=-1)
    assert found.shape == (transform.height, transform.width)
    rows, columns = np.indices(found.shape)
    resized_x, resized_y = columns + geometry.corner[0], rows + geometry.corner[1]
    inside = (resized_x >= 0) & (resized_y >= 0) & (resized_x < geometry.resized[0]) & (resized_y < geometry.resized[1])
    assert ((found >= 0) == inside).all()
    source = np.stack([found % size[0], found // size[0]], axis=-1) + 0.5  # centres of the pixels that were taken
    back = geometry.points(source)
    half = np.array(geometry.resized) / np.array(geometry.upright_size) / 2
    assert (np.abs(back - np.stack([columns, rows], axis=-1) - 0.5)[inside] <= half + 1e-9).all()


@given(size=st.tuples(st.integers(24, 90), st.integers(24, 90)), transform=TRANSFORMS, mark=MARKS, box=st.data())
@settings(max_examples=examples(60), deadline=None)
def test_a_painted_rectangle_lies_in_its_box(size, transform, mark, box) -> None:
    x0, y0 = (box.draw(st.integers(0, side - 9)) for side in size)
    x1, y1 = (box.draw(st.integers(start + 8, side)) for start, side in zip((x0, y0), size, strict=True))
    values = np.zeros(size[::-1], dtype=np.uint8)
    values[y0:y1, x0:x1] = 255
    geometry = transform.geometry(size, mark)
    ((left, top, right, bottom),) = geometry.boxes([[x0, y0, x1, y1]])
    assert 0 <= left <= right <= transform.width
    assert 0 <= top <= bottom <= transform.height
    seen = np.asarray(geometry.picture(Image.fromarray(values), transform.resampling)) > 127
    if right - left < 2 or bottom - top < 2:
        return
    rows, columns = np.flatnonzero(seen.any(1)), np.flatnonzero(seen.any(0))
    assert (
        np.abs(np.array([columns[0], rows[0], columns[-1] + 1, rows[-1] + 1]) - [left, top, right, bottom]).max() <= 1
    )


def test_a_rotation_mark_is_ignored_unless_it_is_to_be_followed() -> None:
    stored = EvalTransform(width=8, height=4, crop_pct=1.0, interpolation="bilinear").geometry((16, 8), 6)
    assert stored == Geometry(size=(16, 8), orientation=1, resized=(8, 4), corner=(0, 0), output=(8, 4))


def test_a_mask_of_another_size_is_refused() -> None:
    geometry = EvalTransform(width=8, height=8, crop_pct=1.0, interpolation="bilinear").geometry((30, 20))
    with pytest.raises(ValueError, match="20 × 30 pixels, and the picture has 30 × 20"):
        geometry.mask(np.zeros((30, 20), dtype=np.uint8), fill=0)


def test_a_box_outside_of_the_crop_has_no_area() -> None:
    geometry = EvalTransform(width=8, height=8, crop_pct=1.0, interpolation="bilinear").geometry((24, 8))
    assert geometry.boxes([[0, 0, 6, 8], [6, 2, 12, 20]]).tolist() == [[0, 0, 0, 8], [0, 2, 4, 8]]
    assert geometry.boxes(np.zeros((0, 4))).shape == (0, 4)
