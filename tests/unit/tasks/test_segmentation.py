"""Segmentation: torchvision's networks measured as by a plain loop, masks as they lie on disk, and what is shown."""

import copy
import io
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from senseapp.core.errors import InvalidDataset, InvalidInput, UnsupportedModel
from senseapp.data.geometry import EvalTransform
from senseapp.data.images import PreparedImages, TensorImages
from senseapp.data.load import load_images
from senseapp.data.pictures import survey_images
from senseapp.descriptions import get
from senseapp.measure.quick.scan import quick_scan
from senseapp.measure.sweep import Sweep
from senseapp.metrics.segmentation import VOID
from senseapp.networks.loaded import Preprocessing
from senseapp.networks.sources.load import load_model
from senseapp.networks.sources.torchvision_networks import torchvision_names
from senseapp.prove.answers import changed_answers
from senseapp.records.resolution import spearman
from senseapp.records.spec import DataSpec, ModelSpec, SensitivitySpec
from senseapp.tasks import CLASSIFICATION, SEGMENTATION
from senseapp.tasks.annotations import AnnotationFiles
from senseapp.tasks.class_numbers import ModelClasses
from senseapp.tasks.display import palette
from senseapp.tasks.segmentation.coco import REST, Shapes
from senseapp.tasks.segmentation.masks import MASKS
from tests.cases import first_of
from tests.pictures import encoded, random_picture, write_folder, write_zip
from tests.plain_loop import sampled, sparse_logits, with_own_statistics
from tests.toy_rectangles import SIDE, network, scene

COUNT, LEVELS = 24, (0.5, 0.9)
Files = Mapping[str, bytes]
SQUARE = Preprocessing(input_shape=(3, SIDE, SIDE), mean=(0.0,) * 3, std=(1.0,) * 3, interpolation="nearest")
FAST = ("lraspp_mobilenet_v3_large",)


# ---- networks


def scenes(count: int = COUNT) -> tuple[Tensor, Tensor]:
    found = [scene(number) for number in range(count)]
    pictures = torch.stack([torch.from_numpy(each.picture) for each in found])
    return (pictures.permute(0, 3, 1, 2) / 255 - 0.5) / 0.25, torch.stack([torch.from_numpy(e.mask) for e in found])


def divergence(before: Tensor, after: Tensor) -> float:
    """Return the mean KL divergence over all pixels of maps (N, C, H, W)."""
    first, second = before.double().log_softmax(1), after.double().log_softmax(1)
    return float((first.exp() * (first - second)).sum(1).mean())


@pytest.mark.parametrize(
    "name",
    [
        name if name in FAST else pytest.param(name, marks=pytest.mark.wide)
        for name in torchvision_names("segmentation")
    ],
)
def test_layers_of_torchvision_are_measured_as_by_a_plain_loop(name: str) -> None:
    """Weights are random, and statistics those of the images: otherwise what early layers do rounds to nothing."""
    loaded = load_model(ModelSpec(library="torchvision", name=name, num_classes=3, img_size=33, task="segmentation"))
    images = torch.randn(3, 3, 33, 33, generator=torch.Generator().manual_seed(0))
    module = with_own_statistics(loaded.module, torch.cat([images, images.flip(3)]))
    layers = sampled([layer for layer, each in module.named_modules() if isinstance(each, nn.Conv2d)])
    spec = SensitivitySpec(
        compression=get("sparsity").config(), levels=(0.5,), num_samples=3, layers=layers, device="cpu"
    )
    sweep = Sweep.open(copy.deepcopy(module), TensorImages(images), spec, task=SEGMENTATION)
    assert sweep.context.replay_obstacle is None
    found = {item.layer: item for item in sweep.measure()}
    assert set(found) == set(layers)
    with torch.inference_mode():
        before = module(images)["out"]
    for layer, item in found.items():
        after = sparse_logits(copy.deepcopy(module), layer, "weight", images)["out"]  # type: ignore[call-overload]
        assert item.change("pixel_kl").delta == pytest.approx(divergence(before, after), rel=1e-3, abs=1e-8)
        same = float((before.argmax(1) == after.argmax(1)).double().mean())
        assert item.change("pixel_agreement").value == pytest.approx(same, abs=2e-3)


def test_estimates_rank_and_size_what_is_measured() -> None:
    images, _ = scenes()
    spec = SensitivitySpec(levels=LEVELS, num_samples=COUNT, device="cpu")
    sweep = Sweep.open(network(), TensorImages(images), spec, task=SEGMENTATION)
    estimated = {item.key: item.change("pixel_kl").delta for item in quick_scan(sweep)}
    measured = {item.key: item.change("pixel_kl").delta for item in sweep.measure()}
    assert estimated.keys() == measured.keys()
    pairs = [(estimated[key], measured[key]) for key in measured]
    assert spearman(*zip(*pairs, strict=True)) > 0.9
    assert all(1 / 3 < one / other < 3 for one, other in pairs if other < 0.05)


def test_the_output_is_the_main_map() -> None:
    main, auxiliary = torch.randn(2, 3, 4, 5), torch.randn(2, 3, 4, 5)
    for raw in ({"out": main, "aux": auxiliary}, {"maps": main}, (torch.ones(2), main, auxiliary), [main], main):
        SEGMENTATION.check_output(raw, 2)
        assert torch.equal(SEGMENTATION.output(raw), main)
    with pytest.raises(UnsupportedModel, match=r"class scores of each pixel, shape \(2, classes, H, W\)"):
        SEGMENTATION.check_output(torch.randn(2, 10), 2)
    with pytest.raises(UnsupportedModel, match="up to 255 classes; this one has 256"):
        SEGMENTATION.check_output(torch.randn(1, 256, 2, 2), 1)
    with pytest.raises(UnsupportedModel, match="Choose a classification model"):
        CLASSIFICATION.check_output({"out": main}, 2)


@pytest.mark.parametrize("shares", [True, False])
def test_a_map_without_an_axis_of_classes_is_one_of_two_classes(shares: bool) -> None:
    maps = 4 * torch.randn(2, 8, 12, generator=torch.Generator().manual_seed(0))
    (reader,) = SEGMENTATION.readers(maps.sigmoid() if shares else maps, (16, 24))
    scores = SEGMENTATION.output(reader(maps.sigmoid() if shares else maps))
    assert scores.shape == (2, 2, 16, 24)
    wanted = torch.nn.functional.interpolate(maps[:, None], (16, 24), mode="bilinear")[:, 0] > 0
    if shares:  # these are enlarged as they are
        wanted = torch.nn.functional.interpolate(maps[:, None].sigmoid(), (16, 24), mode="bilinear")[:, 0] > 0.5
    assert torch.equal(scores.argmax(1) > 0, wanted)


def test_histograms_have_a_score_and_a_loss_with_gradients() -> None:
    maps, (_, targets) = torch.randn(2, 3, SIDE, SIDE, requires_grad=True), scenes(2)
    targets[0, :5] = VOID
    loss = SEGMENTATION.loss(maps, targets)
    wanted = 0.0
    for found, truth in zip(maps.detach().log_softmax(1), targets, strict=True):
        wanted -= float(found.gather(0, truth.long().clamp_max(2)[None])[0][truth != VOID].mean())
    assert float(loss.detach()) == pytest.approx(wanted, rel=1e-5)
    (SEGMENTATION.score(maps) + loss).backward()
    assert bool(maps.grad.isfinite().all())


# ---- masks


@pytest.fixture
def folder(tmp_path: Path) -> Callable[[Files], DataSpec]:
    return lambda files: DataSpec(kind="folder", path=str(write_folder(tmp_path / "set", files)))


def load(spec: DataSpec, num_classes: int = 3, **more: Any) -> PreparedImages:
    how = more.pop("preprocessing", SQUARE)
    images = load_images(spec, how, num_classes=num_classes, task=SEGMENTATION, **more)
    assert isinstance(images, PreparedImages)
    return images


def picture(number: int) -> bytes:
    return encoded(Image.fromarray(scene(number).picture))


def mask(number: int, kind: str = "L") -> bytes:
    image = Image.fromarray(scene(number).mask)
    if kind == "P":
        image = image.convert("P")
        image.putdata(scene(number).mask.ravel().tolist())
        image.putpalette(palette().ravel().tolist())
    return encoded(image)


LAYOUTS: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "two folders": ("images/{}.png", "masks/{}.png", ()),
    "VOC": ("VOC/JPEGImages/{}.png", "VOC/SegmentationClass/{}.png", ("VOC/SegmentationObject/{}.png",)),
    "Cityscapes": (
        "leftImg8bit/val/ulm/ulm_{}_leftImg8bit.png",
        "gtFine/val/ulm/ulm_{}_gtFine_labelTrainIds.png",
        ("gtFine/val/ulm/ulm_{}_gtFine_color.png", "gtFine/val/ulm/ulm_{}_gtFine_labelIds.png"),
    ),
    "one folder": ("{}.png", "{}_mask.png", ()),
    "suffix in a folder": ("train/images/{}.png", "train/masks/{}_mask.png", ()),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kind", ["L", "P"])
def test_masks_are_found_in_every_layout(layout: str, kind: str, folder: Callable[[Files], DataSpec]) -> None:
    pictures, masks, others = LAYOUTS[layout]
    files = {pictures.format(number): picture(number) for number in range(4)}
    files |= {masks.format(number): mask(number, kind) for number in range(4)}
    files |= {other.format(number): picture(9) for number in range(4) for other in others}
    spec = folder(files)
    images = load(spec)
    assert images.names == tuple(pictures.format(number) for number in range(4))
    for number in range(4):
        assert np.array_equal(images.labels[number], scene(number).mask)
    survey = survey_images(spec, num_classes=3, task=SEGMENTATION)
    assert (survey.layout, survey.num_images) == ("annotations", 4)


def test_a_folder_of_masks_can_be_chosen(folder: Callable[[Files], DataSpec]) -> None:
    files = {f"photos/{n}.png": picture(n) for n in range(3)}
    files |= {f"coarse/{n}.png": mask(9) for n in range(3)} | {f"fine/{n}.png": mask(n) for n in range(3)}
    images = load(replace(folder(files), labels="fine"))
    assert all(np.array_equal(images.labels[n], scene(n).mask) for n in range(3))


def test_class_numbers_are_fitted_to_the_model(folder: Callable[[Files], DataSpec]) -> None:
    one = np.where(scene(3).mask > 0, VOID, 0).astype(np.uint8)
    assert one.any()
    files = {"images/3.png": picture(3), "masks/3.png": encoded(Image.fromarray(one))}
    images = load(folder(files), num_classes=2)
    assert np.array_equal(images.labels[0], (one > 0).astype(np.uint8))
    assert any(note == "Class numbers are read as shades from black to white." for note in images.notes)
    numbers = torch.arange(4, dtype=torch.uint8).reshape(1, 2, 2)
    files = AnnotationFiles(names=("", "Cat", "zebra", "TV monitor"))
    model = ModelClasses(num_outputs=3, names=("__background__", "tvmonitor", "cat"))
    fitted = MASKS.fitted(numbers, files, model)
    assert fitted.values.tolist() == [[[0, 2], [VOID, 1]]]
    assert fitted.notes == ("The model has no class zebra.",)


def coco(*, runs: bool, first: int = 1, **changes: Any) -> dict[str, Any]:
    """Return a COCO file of the rectangles of three scenes."""
    annotations = []
    for number in range(3):
        for label, left, top, right, bottom in scene(number).rectangles:
            outline: Any = [[left, top, right, top, right, bottom, left, bottom]]
            if runs:
                inside = np.zeros((SIDE, SIDE), dtype=np.uint8)
                inside[top:bottom, left:right] = 1
                outline = {"size": [SIDE, SIDE], "counts": run_lengths(inside)}
            annotations.append({"image_id": number, "category_id": label + first - 1, "segmentation": outline})
    names = [{"id": first, "name": "red"}, {"id": first + 1, "name": "green"}]
    pictures = [{"id": n, "file_name": f"{n}.png", "width": SIDE, "height": SIDE} for n in range(3)]
    return {"images": pictures, "annotations": annotations, "categories": names} | changes


def run_lengths(inside: np.ndarray) -> list[int]:
    flat = inside.T.ravel()
    lengths = np.diff([0, *(np.flatnonzero(np.diff(flat)) + 1), flat.size]).tolist()
    return [0, *lengths] if flat[0] else lengths


def coco_files(content: object) -> dict[str, bytes]:
    files = {f"images/{number}.png": picture(number) for number in range(3)}
    return files | {"annotations/instances_val.json": json.dumps(content).encode()}


@pytest.mark.parametrize("runs", [True, False])
def test_coco_polygons_and_runs_are_filled(runs: bool, folder: Callable[[Files], DataSpec]) -> None:
    images = load(folder(coco_files(coco(runs=runs))))
    for number in range(3):
        assert np.array_equal(images.labels[number], scene(number).mask)
    assert "Pixels without an annotation are of class 0." in images.notes
    others = load(folder(coco_files(coco(runs=runs, first=0))))  # one above: three classes, of which two are listed
    without = load(folder(coco_files(coco(runs=runs, first=0))), num_classes=2)
    for number in range(3):
        assert np.array_equal(others.labels[number], scene(number).mask)
        wanted = np.where(scene(number).mask == 0, VOID, scene(number).mask - 1)
        assert np.array_equal(without.labels[number], wanted)
    assert "Pixels without an annotation are void." in without.notes


def test_the_text_form_of_runs_is_that_of_pycocotools() -> None:
    coding = pytest.importorskip("pycocotools.mask")
    generator = np.random.default_rng(0)
    for size in ((13, 7), (40, 61), (300, 200)):
        inside = (generator.random(size) < 0.5).astype(np.uint8)
        inside[: size[0] // 2] = 1
        written = coding.encode(np.asfortranarray(inside))
        shape = {"category_id": 1, "segmentation": {"size": list(size), "counts": written["counts"].decode()}}
        plain = EvalTransform(width=size[1], height=size[0], crop_pct=1.0, interpolation="nearest")
        placed = Shapes(shapes=(shape,)).placed(plain.geometry((size[1], size[0])))
        assert np.array_equal(placed, np.where(inside, 1, REST))


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("size", first_of(map(pytest.param, [(37, 51), (64, 40)])))
def test_polygons_and_runs_lie_where_a_label_image_would(orientation: int, size: tuple[int, int]) -> None:
    width, height = size
    how = EvalTransform(width=24, height=24, crop_pct=0.9, interpolation="nearest", upright=True)
    geometry = how.geometry(size, orientation)
    left, top, right, bottom = 0.2 * width, 0.3 * height, 0.75 * width, 0.8 * height
    corners = [left, top, right, top, right, bottom, left, bottom]
    ys, xs = np.mgrid[:height, :width] + 0.5
    inside = ((xs > left) & (xs < right) & (ys > top) & (ys < bottom)).astype(np.uint8)
    wanted = geometry.mask(np.where(inside > 0, 1, REST).astype(np.uint8), fill=VOID)
    runs = {"size": [height, width], "counts": run_lengths(inside)}
    for outline, allowed in (([corners], 0.06), (runs, 0.0)):
        placed = Shapes(shapes=({"category_id": 1, "segmentation": outline},)).placed(geometry)
        assert (placed != wanted).mean() <= allowed  # the edge of a polygon passes between pixels of the picture


def test_small_objects_lie_on_top_and_crowds_are_void() -> None:
    plain = EvalTransform(width=8, height=8, crop_pct=1.0, interpolation="nearest").geometry((8, 8))
    small = {"category_id": 2, "segmentation": [[2, 2, 4, 2, 4, 4, 2, 4]]}
    large = {"category_id": 1, "segmentation": [[0, 0, 6, 0, 6, 6, 0, 6]]}
    crowd = {"category_id": 1, "iscrowd": 1, "segmentation": {"size": [8, 8], "counts": [56, 8]}}
    placed = Shapes(shapes=(small, large, crowd)).placed(plain)
    wanted = np.full((8, 8), REST)
    wanted[:6, :6], wanted[2:4, 2:4], wanted[:, 7] = 1, 2, VOID
    assert np.array_equal(placed, wanted)


def changed_coco(**changes: Any) -> dict[str, Any]:
    """Return a COCO file whose first object is changed."""
    content = coco(runs=False)
    content["annotations"][0] |= changes
    return content


RUNS = {"size": [SIDE, SIDE], "counts": [SIDE * SIDE]}
REFUSED: list[tuple[object, str]] = [
    ([], 'a COCO file has the keys "images" and "annotations"'),
    (coco(runs=False) | {"annotations": [5]}, "an annotation without image_id"),
    (coco(runs=False) | {"categories": [{"id": -9}]}, "a class number must be a whole number from 0 to 253, got -9"),
]
LEFT_OUT: list[tuple[dict[str, Any], str]] = [
    ({"segmentation": [[1, 2, 3]]}, "three corners at least"),
    ({"segmentation": [[1e300, 2, 3, 4, 5, 6]]}, "a corner that is no number"),
    ({"segmentation": [[0, 0, 1, 1] * 110_000]}, "polygons with more than 200,000 corners"),
    ({"segmentation": RUNS | {"size": [SIDE, 2**40]}}, "not of the picture's 32 × 32 pixels"),
    ({"segmentation": RUNS | {"counts": [5, 6]}}, "runs of 11 pixels, and the picture has 1,024"),
    ({"segmentation": RUNS | {"counts": [-5, 1029]}}, "shorter than 0, or too long"),
    ({"segmentation": RUNS | {"counts": "€€"}}, "a text that is none of COCO's"),
]


@pytest.mark.parametrize(("content", "words"), REFUSED, ids=[words for _, words in REFUSED])
def test_a_damaged_coco_file_is_refused_in_one_sentence(
    content: object, words: str, folder: Callable[[Files], DataSpec]
) -> None:
    spec = replace(folder(coco_files(content)), labels="annotations/instances_val.json")
    with pytest.raises(InvalidDataset, match=re.escape(words)):
        load(spec)


@pytest.mark.parametrize(("change", "words"), LEFT_OUT, ids=[words for _, words in LEFT_OUT])
def test_a_picture_with_a_damaged_object_is_left_out_with_the_reason(
    change: dict[str, Any], words: str, folder: Callable[[Files], DataSpec]
) -> None:
    content = changed_coco(**change)
    images = load(folder(coco_files(content)))
    left = f"images/{content['annotations'][0]['image_id']}.png"
    assert left not in images.names
    assert len(images) == 2
    assert any(words in note and left in note for note in images.notes)


def test_a_mask_with_too_large_numbers_is_refused_before_a_run(folder: Callable[[Files], DataSpec]) -> None:
    files = {"images/1.png": picture(1), "masks/1.png": encoded(Image.fromarray(np.full((SIDE, SIDE), 7, np.uint8)))}
    with pytest.raises(InvalidDataset, match=r"have the classes 7, and the model has 3 outputs: no reading"):
        load(folder(files))
    with pytest.raises(InvalidInput, match=r"class numbers below 3, the model's number of classes, .* got 7"):
        SEGMENTATION.check_targets(torch.full((1, 8, 8), 7, dtype=torch.uint8), 1, 3)


def test_colours_of_pascal_voc_are_classes(folder: Callable[[Files], DataSpec]) -> None:
    files = {f"images/{n}.png": picture(n) for n in range(3)}
    files |= {f"masks/{n}.png": encoded(Image.fromarray(palette()[scene(n).mask])) for n in range(3)}
    images = load(folder(files), class_names=())
    for number in range(3):
        assert np.array_equal(images.labels[number], scene(number).mask)


def test_an_annotation_without_a_segmentation_is_left_out_with_words(folder: Callable[[Files], DataSpec]) -> None:
    content = coco(runs=False)
    content["annotations"] += [
        {"image_id": 0, "category_id": 1, "bbox": [1, 2, 3, 4], "segmentation": each} for each in ([], None)
    ]
    content["annotations"].append({"image_id": 1, "category_id": 2, "bbox": [1, 2, 3, 4]})
    images = load(folder(coco_files(content)))
    assert all(np.array_equal(images.labels[number], scene(number).mask) for number in range(3))
    assert any(note.startswith("3 annotations in annotations/instances_val.json left out: ") for note in images.notes)


def test_a_colour_picture_is_no_mask(tmp_path: Path) -> None:
    files = {f"images/{n}.png": picture(n) for n in range(2)}
    files |= {"masks/0.png": mask(0), "masks/1.png": encoded(random_picture(3, (SIDE, SIDE)))}
    images = load(DataSpec(kind="archive", path=str(write_zip(tmp_path / "set.zip", files))))
    assert images.names == ("images/0.png",)
    assert any("images/1.png" in note and "its mask" in note for note in images.notes)


# ---- what people are shown


def test_pictures_that_change_most_come_first_with_masks_side_by_side(folder: Callable[[Files], DataSpec]) -> None:
    files = {f"images/{n}.png": picture(n) for n in range(8)} | {f"masks/{n}.png": mask(n) for n in range(8)}
    images = load(folder(files), preprocessing=replace(SQUARE, mean=(0.5,) * 3, std=(0.25,) * 3))
    module = network()
    before, after = (SEGMENTATION.predictions(each) for each in maps(module, images.batch(0, 8)))
    names = ("background", "red", "green")
    found = changed_answers(before, after, images, task=SEGMENTATION, names=names, subject="test")
    kept = (before.parts["classes"] == after.parts["classes"]).flatten(1).double().mean(1)  # type: ignore[union-attr]
    assert 50 < 100 * float(kept.mean()) < 99.9
    assert found.said.startswith(f"Of 100 pixels, {100 * float(kept.mean()):.1f} keep their class;")
    shares = [float(each.caption.split()[0]) for each in found.pictures]
    assert shares == sorted(shares)
    assert shares[0] == pytest.approx(100 * float(kept.min()), abs=0.06)
    first = found.pictures[0]
    assert [title for title, _ in first.drawn] == ["original", "compressed", "label"]
    drawn = [np.asarray(Image.open(io.BytesIO(png))) for _, png in first.drawn]
    assert not np.array_equal(drawn[0], drawn[1])
    assert 100 < Image.open(io.BytesIO(found.legend)).width < 300  # three short names
    assert found.measure == "IoU with the masks"
    assert {each.name for each in found.classes} <= set(names)
    assert all(each.low <= each.drop <= each.high for each in found.classes)
    without = changed_answers(
        before, after, TensorImages(images.batch(0, 8)), task=SEGMENTATION, names=names, subject="test"
    )
    assert without.measure == "IoU with the original's classes"
    assert not any(each.drawn for each in without.pictures)


def maps(module: nn.Module, images: Tensor) -> tuple[Tensor, Tensor]:
    """Return the scores of images, and the same with more noise in each image than in the one before."""
    with torch.inference_mode():
        before = module(images)
    noise = torch.randn(before.shape, generator=torch.Generator().manual_seed(0))
    return before, before + noise * torch.linspace(0.5, 2, len(images))[:, None, None, None]


def test_answers_are_said_by_the_share_of_pixels() -> None:
    target = torch.zeros(10, 10, dtype=torch.uint8)
    target[:2], target[9] = 15, VOID
    assert SEGMENTATION.target_text(target, ["ground"] * 15 + ["person"]) == "ground 78 %, person 22 %"
    assert SEGMENTATION.output_text({"classes": target}, ()) == "class 0 78 %, class 15 22 %"
    assert SEGMENTATION.target_text(torch.full((2, 2), VOID, dtype=torch.uint8), ()) == "no class"
    assert "near chance" in SEGMENTATION.baseline_warning({"pixel_accuracy": 0.2}, 8, 3)
    assert not SEGMENTATION.baseline_warning({"pixel_accuracy": 0.9}, 8, 3)
    assert not SEGMENTATION.baseline_warning({}, 8, 3)


@pytest.mark.parametrize("last", [False, True])
def test_smaller_maps_of_scores_are_compared_at_the_size_of_the_images(last: bool) -> None:
    scores = torch.randn(2, 3, 16, 24)
    raw = scores.permute(0, 2, 3, 1) if last else scores
    (layout,) = SEGMENTATION.readers(raw, (32, 48))
    found = SEGMENTATION.reader_of(layout.key)(raw)
    assert found.shape == (2, 3, 32, 48)
    # between the middles of pixels, of which the first two are at 0.5 and 2.5 of the larger grid
    assert torch.allclose(
        found[..., 1, 1], scores[..., :2, :2].flatten(2) @ torch.tensor([9.0, 3.0, 3.0, 1.0]) / 16, atol=1e-6
    )
    (same,) = SEGMENTATION.readers(raw, (16, 24))
    assert torch.equal(same(raw), scores)
    (score,) = SEGMENTATION.readers(torch.randn(2, 3, 1, 1), (32, 48))  # one row of classes is no map
    with pytest.raises(UnsupportedModel):
        SEGMENTATION.check_output(score(torch.randn(2, 3, 1, 1)), 2)
