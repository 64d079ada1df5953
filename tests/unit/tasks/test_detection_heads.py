"""Raw outputs of detectors, made by hand: which layout each is recognised as, and where its boxes land."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from senseapp.core.errors import UnsupportedModel
from senseapp.metrics.detection.matching import candidates_of, detections_of
from senseapp.metrics.detection.rows import BOX, KIND, RowKind, class_scores
from senseapp.networks.loaded import Preprocessing
from senseapp.networks.onnx.metadata import UsualPreparation
from senseapp.tasks.detection import DETECTION
from senseapp.tasks.detection.heads import head_readers, read_heads
from senseapp.tasks.detection.heads.layout import HeadLayout
from senseapp.tasks.reading import UsualInput

SIDE, CLASSES = 64, 3
CELLS = 8 * 8 + 4 * 4 + 2 * 2
WANTED = (16.0, 8.0, 40.0, 48.0)  # left, top, right, bottom; its centre (28, 28) lies in cell (3, 3) of stride 8
PLACE = 3 * 8 + 3
LABEL = 1


def sure(score: float) -> float:
    return math.log(score / (1 - score))


def centre(box: tuple[float, ...] = WANTED) -> Tensor:
    left, top, right, bottom = box
    return torch.tensor([(left + right) / 2, (top + bottom) / 2, right - left, bottom - top])


def assert_found(raw: object, score: float = 0.9, label: int = LABEL) -> None:
    """Require that the best detection of the first image is the wanted one."""
    found = detections_of(candidates_of(*read_heads(raw))[0])[0].tolist()
    assert found == pytest.approx([score, label, *WANTED], abs=1e-3)


def read(raw: object, size: tuple[int, int] = (SIDE, SIDE)) -> tuple[HeadLayout, dict[str, Tensor]]:
    layout = head_readers(raw, size)[0]
    return layout, layout(raw)


def random_pixels(count: int, images: int = 2) -> Tensor:
    return torch.rand(images, count, 4, generator=torch.Generator().manual_seed(0)) * SIDE


def rare(*shape: int) -> Tensor:
    return torch.full(shape, 0.001)


def test_four_and_classes_along_the_last_axis_as_yolov8_exports_them() -> None:
    values = torch.cat([random_pixels(CELLS), rare(2, CELLS, CLASSES)], dim=2)
    values[0, PLACE] = torch.cat([centre(), torch.tensor([0.001, 0.9, 0.001])])
    layout, heads = read(values.transpose(1, 2).contiguous())
    assert_found(heads)
    assert layout.words == "84 boxes (centre, width and height in pixels) with 3 classes"
    assert heads["rows"].shape == (2, CELLS, 6 + CLASSES)
    assert (heads["rows"][..., KIND] == RowKind.SIGMOID).all()


def test_five_and_classes_as_yolov5_exports_them() -> None:
    values = torch.cat([random_pixels(3 * CELLS), rare(2, 3 * CELLS, 1), rare(2, 3 * CELLS, CLASSES)], dim=2)
    values[0, 7] = torch.cat([centre(), torch.tensor([0.9, 0.001, 1.0, 0.001])])
    layout, heads = read(values)
    assert_found(heads)
    assert layout.words == "252 boxes (centre, width and height in pixels) with 3 classes and an object's score"


def cells() -> Tensor:
    """Return a box around the middle of each cell, row by row, as corners (2, CELLS, 4) in pixels."""
    found = []
    for stride in (8, 16, 32):
        y, x = torch.meshgrid(*[(torch.arange(SIDE // stride) + 0.5) * stride] * 2, indexing="ij")
        found.append(torch.stack([x - stride, y - stride, x + stride, y + stride], dim=2).reshape(-1, 4))
    return torch.cat(found).expand(2, -1, -1).clone() + torch.randn(
        2, CELLS, 4, generator=torch.Generator().manual_seed(0)
    )


@pytest.mark.parametrize("pair", [True, False])
def test_boxes_that_name_y_before_x_as_tensorflow(pair: bool) -> None:
    boxes, scores = cells()[..., [1, 0, 3, 2]], rare(2, CELLS, CLASSES)
    boxes[0, PLACE], scores[0, PLACE, LABEL] = torch.tensor(WANTED)[[1, 0, 3, 2]], 0.9
    raw = [boxes / SIDE, scores] if pair else torch.cat([boxes / SIDE, scores], dim=2)
    layout = head_readers(raw, (SIDE, SIDE), CLASSES)[0]
    assert_found(layout(raw))
    assert "corners, y before x, in shares of a side" in layout.words


def test_an_order_of_sides_that_boxes_do_not_tell_is_left_to_labels() -> None:
    pair = [cells()[:, torch.randperm(CELLS)], rare(2, CELLS, CLASSES)]
    assert [each.rows_first for each in head_readers(pair, (SIDE, SIDE))] == [False]
    assert [each.rows_first for each in head_readers(pair, (SIDE, SIDE), every=True)] == [False, True]


def test_coefficients_behind_logits_of_classes_are_no_classes() -> None:
    logits = torch.full((2, CELLS, CLASSES), -7.0)
    logits[0, PLACE, LABEL] = sure(0.9)
    values = torch.cat([random_pixels(CELLS), logits, torch.randn(2, CELLS, 32)], dim=2)
    values[0, PLACE, :4] = centre()
    layout, heads = read(values.transpose(1, 2).contiguous())
    assert_found(heads)
    assert (layout.num_classes, layout.num_unread) == (CLASSES, 32)


def test_an_angle_before_scores_of_classes_is_not_read() -> None:
    values = torch.cat([random_pixels(CELLS), torch.randn(2, CELLS, 1), rare(2, CELLS, CLASSES)], dim=2)
    values[0, PLACE] = torch.cat([centre(), torch.tensor([-0.3, 0.001, 0.9, 0.001])])
    layout = head_readers(values, (SIDE, SIDE), CLASSES)[0]
    assert_found(layout(values))
    assert (layout.num_classes, layout.num_unread, layout.first_class) == (CLASSES, 1, 5)


def test_shifts_from_anchors_that_no_file_holds_are_no_boxes() -> None:
    for raw in ([torch.randn(2, CELLS, 4), rare(2, CELLS, CLASSES)], torch.randn(2, 50, 4 + CLASSES)):
        with pytest.raises(UnsupportedModel, match="none that is known"):
            head_readers(raw, (SIDE, SIDE))


def test_an_objects_score_that_is_1_everywhere_is_no_class_as_yolov6() -> None:
    values = torch.cat([random_pixels(CELLS), torch.ones(2, CELLS, 1), rare(2, CELLS, CLASSES)], dim=2)
    values[0, PLACE] = torch.cat([centre(), torch.tensor([1.0, 0.001, 0.9, 0.001])])
    layout, heads = read(values)
    assert_found(heads)
    assert layout.num_classes == CLASSES


def test_shifts_in_cells_as_yolox() -> None:
    values = torch.cat([torch.zeros(2, CELLS, 4), rare(2, CELLS, 1 + CLASSES)], dim=2)
    x, y, width, height = centre().tolist()
    shift = [x / 8 - 3, y / 8 - 3, math.log(width / 8), math.log(height / 8)]
    values[0, PLACE] = torch.tensor([*shift, 0.9, 0.001, 1.0, 0.001])
    layout, heads = read(values)
    assert_found(heads)
    assert "as of YOLOX" in layout.words


def distances(bins: int) -> Tensor:
    """Return logits, (4 · bins,), whose means are the distances of the wanted box from its cell's centre, in cells."""
    left, top, right, bottom = (each / 8 for each in WANTED)
    found = torch.full((4, bins), -50.0)
    for row, distance in enumerate((3.5 - left, 3.5 - top, right - 3.5, bottom - 3.5)):
        low = int(distance)
        found[row, low], found[row, low + 1] = math.log(1 - distance + low), math.log(distance - low + 1e-12)
    return found.flatten()


def test_distributions_of_distances_as_yolov8() -> None:
    logits = torch.full((2, CELLS, CLASSES), -7.0)
    logits[0, PLACE, LABEL] = sure(0.9)
    values = torch.cat([torch.randn(2, CELLS, 64), logits], dim=2)
    values[0, PLACE, :64] = distances(16)
    layout, heads = read(values.transpose(1, 2).contiguous())
    assert_found(heads)
    assert "DFL" in layout.words
    maps = [
        part.transpose(1, 2).reshape(2, -1, side, side)
        for part, side in zip(values.split((64, 16, 4), dim=1), (8, 4, 2), strict=True)
    ]
    layout, from_maps = read(maps[::-1])  # in any order
    assert_found(from_maps)
    assert layout.words == "maps of strides 8, 16, 32 with distances in 16 steps (DFL) and 3 classes, as of YOLOv8"
    torch.testing.assert_close(from_maps["rows"], heads["rows"])
    parted = [part for each in maps for part in (each[:, :64], each[:, 64:].sigmoid(), each[:, :1])]  # for RKNN
    torch.testing.assert_close(read(parted)[1]["rows"], heads["rows"], atol=1e-3, rtol=1e-3)


def test_distances_by_stride_as_picodet() -> None:
    counts = (64, 16, 4, 1)
    classes = [rare(2, count, CLASSES) for count in counts]
    sides = [torch.randn(2, count, 32) for count in counts]
    classes[0][0, PLACE, LABEL] = 0.9
    sides[0][0, PLACE] = distances(8)
    layout, heads = read([*classes, *sides])
    assert_found(heads)
    assert layout.words.startswith("maps of strides 8, 16, 32, 64 with distances in steps and 3 classes")


def test_anchored_maps_as_yolov5() -> None:
    maps = [torch.zeros(2, 3, side, side, 5 + CLASSES) for side in (8, 4, 2)]
    for each in maps:
        each[..., 4:] = -7.0
    x, y, width, height = centre().tolist()
    place = [(x / 8 - 3 + 0.5) / 2, (y / 8 - 3 + 0.5) / 2]
    shares = torch.tensor([*place, (width / 16) ** 0.5 / 2, (height / 30) ** 0.5 / 2])
    maps[0][0, 1, 3, 3, :4] = shares.logit()
    maps[0][0, 1, 3, 3, 4:] = torch.tensor([sure(0.9), -7.0, 20.0, -7.0])
    layout, heads = read(maps)
    assert_found(heads)
    assert layout.words.startswith("maps of strides 8, 16, 32 with three anchors")
    maps[0][0, 1, 3, 3, :4] = torch.tensor([(x / 8 - 3), (y / 8 - 3), 0.0, 0.0]).logit().nan_to_num(neginf=0.0)
    maps[0][0, 1, 3, 3, 2:4] = torch.tensor([width / 16, height / 30]).log()
    layout = head_readers(maps, (SIDE, SIDE), every=True)[1]
    assert layout.words.endswith("as of YOLOv3")
    assert_found(layout(maps))
    flat = [each.permute(0, 1, 4, 2, 3).reshape(2, -1, *each.shape[2:4]) for each in maps]
    torch.testing.assert_close(layout(flat)["rows"], layout(maps)["rows"])


def test_a_softmax_with_corners_as_ssd() -> None:
    shares = torch.tensor([0.98, 0.01, 0.005, 0.005]).expand(2, 50, 4).clone()
    boxes = torch.tensor([0.1, 0.1, 0.4, 0.5]).expand(2, 50, 4).clone()
    shares[0, 9] = torch.tensor([0.05, 0.9, 0.03, 0.02])
    boxes[0, 9] = torch.tensor(WANTED) / SIDE
    (layout,) = head_readers([boxes, shares], (SIDE, SIDE))
    assert (
        layout.words == "50 boxes (corners in shares of a side) with a softmax of 4 classes, the first the background"
    )
    assert_found(layout([boxes, shares]), label=1)


def test_a_softmax_whose_last_class_is_no_object_as_detr() -> None:
    logits = torch.tensor([0.0, 0.0, 0.0, 6.0]).expand(2, 20, 4).clone()
    boxes = torch.full((2, 20, 4), 0.5)
    logits[0, 4] = torch.tensor([-9.0, math.log(9.0), -9.0, 0.0])
    boxes[0, 4] = centre() / SIDE
    (layout,) = head_readers([logits, boxes], (SIDE, SIDE))
    assert (
        layout.words == "20 boxes (centre, width and height in shares of a side) with a softmax of 4 classes, the last "
        "the background"
    )
    rows = layout([logits, boxes])["rows"]
    assert_found({"rows": rows})
    assert (class_scores(rows, RowKind.SOFTMAX_LAST)[..., -1] == 0).all()


@pytest.mark.parametrize("boxes_first", [True, False])
def test_boxes_are_told_from_the_logits_of_four_classes(boxes_first: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    corner, sides = (torch.rand(2, 50, 2, generator=generator) * SIDE / 2 for _ in range(2))
    boxes = torch.cat([corner, corner + sides], dim=2)
    logits = torch.randn(2, 50, 4, generator=generator) + torch.tensor([5.0, 0.0, 0.0, 0.0])
    pair = [boxes, logits] if boxes_first else [logits, boxes]
    (layout,) = head_readers(pair, (SIDE, SIDE))
    assert layout.words == "50 boxes (corners in pixels) with a softmax of 4 classes, the first the background"
    torch.testing.assert_close(layout(pair)["rows"][..., :4], boxes)


def test_centre_maps() -> None:
    heat, sizes, offsets = rare(2, CLASSES, 8, 8), torch.ones(2, 2, 8, 8), torch.full((2, 2, 8, 8), 0.5)
    heat[0, LABEL, 3, 3] = 0.9
    sizes[0, :, 3, 3] = torch.tensor([24.0, 40.0]) / 8
    (layout,) = head_readers([heat, offsets, sizes], (SIDE, SIDE))
    assert layout.words == "maps of centres for 3 classes, with sizes, as of CenterNet"
    assert_found(layout([heat, offsets, sizes]))


def centerface(height: int = 12, width: int = 8) -> list[Tensor]:
    """Return maps of one class at stride 4: centres, logarithms of (height, width), offsets (y, x), five points."""
    generator = torch.Generator().manual_seed(1)
    heat = torch.rand(2, 1, height, width, generator=generator)
    sizes = 3 * torch.rand(2, 2, height, width, generator=generator)
    offsets = torch.rand(2, 2, height, width, generator=generator) - 0.5
    return [heat, sizes, offsets, torch.randn(2, 10, height, width, generator=generator)]


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 2, 1, 0), (2, 0, 3, 1)])
def test_centre_maps_of_logarithms_are_those_of_a_loop_over_cells(order: tuple[int, ...]) -> None:
    """Against the loop that CenterFace's authors publish, without its clipping to the picture."""
    heat, sizes, offsets, _ = maps = centerface()
    given = [maps[place] for place in order]
    (layout,) = head_readers(given, (48, 32))
    assert layout.words == (
        "maps of centres for 1 class, with logarithms of heights and widths, as of CenterFace; further maps are not "
        "read"
    )
    rows = layout(given)["rows"]
    for image, y, x in [(0, 0, 0), (0, 11, 7), (1, 3, 5)]:
        tall, wide = np.exp(sizes[image, :, y, x].numpy().astype(np.float64)) * 4
        middle_y, middle_x = 4 * (np.array([y, x]) + offsets[image, :, y, x].numpy().astype(np.float64) + 0.5)
        row = rows[image, 8 * y + x]
        expected = [middle_x - wide / 2, middle_y - tall / 2, middle_x + wide / 2, middle_y + tall / 2]
        assert row[BOX].tolist() == pytest.approx(expected, rel=1e-5, abs=1e-4)
        assert float(row[-1].sigmoid()) == pytest.approx(float(heat[image, 0, y, x]), abs=1e-5)
    assert rows.shape[1] == 96


def test_a_layout_is_kept_where_values_leave_their_range() -> None:
    values = torch.cat([random_pixels(CELLS), rare(2, CELLS, CLASSES)], dim=2).transpose(1, 2).contiguous()
    (layout,) = head_readers(values, (SIDE, SIDE))
    broken = values.clone()
    broken[:, 4:] = 1.7  # of a compressed network, whose sigmoid is not the last node
    assert layout([broken])["rows"].isfinite().all()


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (torch.rand(2, 1000), r"none that is known for detectors: \(2, 1000\)"),
        ([], "nothing"),
        ([torch.rand(2, 3, 9, 9), torch.rand(2, 3, 5, 5)], r"\(2, 3, 9, 9\), \(2, 3, 5, 5\)"),
        (
            torch.cat([torch.rand(1, 9, 4), torch.linspace(1, 0, 9)[None, :, None], torch.ones(1, 9, 1)], dim=2),
            "final boxes, 9 for each image",
        ),
    ],
)
def test_what_is_unknown_is_refused_by_name(raw: object, said: str) -> None:
    with pytest.raises(UnsupportedModel, match=said):
        head_readers(raw, (SIDE, SIDE))
    with pytest.raises(UnsupportedModel, match="none that is known"):
        read_heads(raw)


def test_a_box_of_each_class_of_regions() -> None:
    logits = torch.zeros(1, 2, 4)
    logits[0, :, 0] = 8.0
    logits[0, 1] = torch.tensor([0.0, -9.0, math.log(9.0), -9.0])
    boxes = torch.zeros(1, 2, 4, 4)
    boxes[0, 1, 2] = torch.tensor(WANTED)
    raw = {
        "anchor_boxes": torch.rand(1, 5, 4),
        "anchor_logits": torch.randn(1, 5),
        "proposal_boxes": boxes,
        "softmax_logits": logits,
    }
    assert_found(raw, label=2)
    rows, _ = read_heads(raw)
    assert rows[0, :, KIND].tolist() == [RowKind.ANCHOR] * 5 + [RowKind.PROPOSAL] * 2
    assert rows[0, 6, BOX].tolist() == list(WANTED)


def test_a_reader_knows_the_size_of_images_that_are_no_square() -> None:
    height, width = 96, 64  # 12 x 8, 6 x 4, 3 x 2 and 2 x 1 cells
    counts = (96, 24, 6, 2)
    classes, sides = ([torch.zeros(2, count, wide) for count in counts] for wide in (CLASSES, 32))
    reader = DETECTION.readers([*classes, *sides], (height, width))[0]
    for each in classes:
        each.fill_(0.001)
    classes[0][0, PLACE, LABEL] = 0.9
    sides[0][0, PLACE] = distances(8)
    assert "maps of strides 8, 16, 32, 64" in reader.words
    assert_found(reader([*classes, *sides]))


def test_a_reader_decodes_what_is_rounded_as_it_decodes_the_original() -> None:
    """Shares that do not add up to 1 any more look like boxes, and boxes like their classes."""
    boxes = torch.rand(2, 50, 4).sort(dim=2).values * SIDE  # corners
    shares = torch.tensor([0.97, 0.01, 0.01, 0.01]).repeat(2, 50, 1)
    reader = DETECTION.readers([boxes, shares], (SIDE, SIDE))[0]
    rounded = [boxes, (shares * 20).round() / 20]  # 0.95, and 0 for the others
    assert head_readers(rounded, (SIDE, SIDE))[0].order != reader.order
    rows, _ = read_heads(reader(rounded))
    assert set(rows[..., KIND].flatten().tolist()) == {RowKind.SOFTMAX}
    torch.testing.assert_close(rows[..., BOX], boxes)


def test_heads_of_a_known_family_say_how_pictures_are_prepared() -> None:
    """By the families' own code: what OpenCV reads, at the upper left, for YOLOX; no ImageNet's mean and std."""
    shifts = torch.cat([torch.rand(2, CELLS, 2), torch.zeros(2, CELLS, 2), rare(2, CELLS, CLASSES + 1)], dim=2)
    yolox = head_readers(shifts, (SIDE, SIDE))[0].usual_input
    face = head_readers(centerface(), (48, 32))[0].usual_input
    assert (yolox, face) == (
        UsualInput(family="YOLOX", values="bytes", channel_order="bgr", fit="corner"),
        UsualInput(family="CenterFace", values="bytes"),
    )
    shape, none = (3, SIDE, SIDE), (0.0, 0.0, 0.0)
    usual = UsualPreparation(
        preprocessing=Preprocessing(input_shape=shape, mean=none, std=(1.0,) * 3), words="", evidence="assumed"
    )
    found = usual.of_family(yolox)
    assert found.preprocessing == Preprocessing(
        input_shape=shape, mean=none, std=(1 / 255,) * 3, channel_order="bgr", fit="corner"
    )
    assert found.words == "values from 0 to 255, channels in the order bgr"
    assert replace(usual, evidence="file").of_family(yolox).preprocessing == usual.preprocessing
