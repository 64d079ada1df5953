"""Masks and boxes beside pictures: which belong to which, where they land, and what is left out and said."""

import json
import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from senseapp.core.errors import InvalidDataset
from senseapp.data.images import PreparedImages, bytes_of, draw
from senseapp.data.load import load_images
from senseapp.data.pictures import survey_images
from senseapp.metrics.segmentation import VOID
from senseapp.networks.loaded import Preprocessing
from senseapp.records.spec import SHAPE_NAMES, WITHOUT_LABELS, DataSpec
from senseapp.tasks import CLASSIFICATION, TASKS, Task
from senseapp.tasks.annotations import AnnotationFiles, AnnotationReader, Listing, PictureGeometry, pairs_by_stem
from soak.annotation_files import by_hand
from soak.annotations import outcome_of
from tests import shapes_detector, toy_rectangles
from tests.pictures import encoded, png, random_picture, write_folder, write_tar, write_zip
from tests.toy_rectangles import SIDE, Scene, scene

DETECTION, SEGMENTATION = TASKS["detection"], TASKS["segmentation"]
PLAIN = Preprocessing(input_shape=(3, SIDE, SIDE), mean=(0.0,) * 3, std=(1.0,) * 3, interpolation="nearest")
Files = Mapping[str, bytes]


@pytest.fixture
def folder(tmp_path: Path) -> Callable[[Files], DataSpec]:
    """Return what writes a folder of files."""
    return lambda files: DataSpec(kind="folder", path=str(write_folder(tmp_path / "set", files)))


def load(spec: DataSpec, task: Task = SEGMENTATION, **more: Any) -> PreparedImages:
    images = load_images(spec, more.pop("preprocessing", PLAIN), num_classes=3, task=task, **more)
    assert isinstance(images, PreparedImages)
    return images


@pytest.mark.parametrize(
    ("picture", "mask"),
    [
        ("images/1.jpg", "masks/1.png"),
        ("set/images/val/1.jpg", "set/annotations/val/1.png"),
        ("set/val/images/1.jpg", "set/val/labels/1.png"),
        ("VOC2012/JPEGImages/2007_1.jpg", "VOC2012/SegmentationClass/2007_1.png"),
        ("images/1.jpg", "annotations/trimaps/1.png"),
        ("1.jpg", "masks/1.png"),
        ("images/a.1.jpg", "masks/a.1.png"),
    ],
)
def test_a_mask_belongs_to_the_picture_of_its_name(picture: str, mask: str) -> None:
    others = [picture.replace("1", "2"), picture.rpartition("/")[0] + "/x/1.jpg"]
    assert pairs_by_stem([picture, *others, mask], [picture, *others, mask]) == ({picture: mask}, {mask})


def test_what_is_ambiguous_or_elsewhere_is_no_pair() -> None:
    assert pairs_by_stem(["images/1.jpg", "photos/1.jpg", "masks/1.png"], ["masks/1.png"]) == ({}, {"masks/1.png"})
    assert pairs_by_stem(["with_mask/1.jpg", "without_mask/1.jpg"], ["with_mask/1.jpg"]) == ({}, set())
    two = ["SegmentationObject/1.png", "SegmentationClass/1.png"]
    assert pairs_by_stem(["JPEGImages/1.jpg", *two], two) == ({"JPEGImages/1.jpg": two[1]}, set(two))
    assert pairs_by_stem([], []) == ({}, set())


@pytest.mark.parametrize("kind", ["folder", "zip", "tar.gz"])
def test_masks_are_read_with_their_pictures_from_any_source(kind: str, tmp_path: Path) -> None:
    files = toy_rectangles.picture_files(6)
    shuffled = dict(sorted(files.items(), key=lambda item: item[0][::-1]))
    path = tmp_path / f"set.{kind}"
    write = {"folder": write_folder, "zip": write_zip, "tar.gz": lambda path, files: write_tar(path, files, "w:gz")}
    write[kind](path, shuffled)
    images = load(DataSpec(kind="folder" if kind == "folder" else "archive", path=str(path)))
    assert images.names == tuple(f"images/{number:03d}.png" for number in range(6))
    assert (images.labels.dtype, images.labels.shape) == (torch.uint8, (6, SIDE, SIDE))
    for number in range(6):
        found = scene(number)
        assert np.array_equal(images.labels[number], found.mask)
        assert np.array_equal(
            (images.batch(number, number + 1)[0] * 255).round().byte().permute(1, 2, 0), found.picture
        )
    assert (images.class_names, images.notes) == ((), ("6 pictures with masks.",))


@pytest.mark.parametrize("crop_pct", [0.8, 1.3])
def test_a_mask_lies_where_its_picture_does(folder: Callable[[Files], DataSpec], crop_pct: float) -> None:
    """A picture that shows its own class numbers comes out, by nearest pixels, as its mask does."""
    values = np.random.default_rng(0).integers(0, 3, (41, 67), dtype=np.uint8)
    files = {"images/1.png": encoded(Image.fromarray(80 * values + 1)), "masks/1.png": encoded(Image.fromarray(values))}
    how = replace(PLAIN, crop_pct=crop_pct, input_shape=(1, 24, 36), mean=(0.0,), std=(1.0,))
    images = load(folder(files), preprocessing=how)
    shown = (images.batch(0, 1)[0, 0] * 255).round()
    outside = shown == 0
    assert bool(outside.any()) == (crop_pct > 1)
    assert torch.equal(images.labels[0] == VOID, outside)
    assert torch.equal(images.labels[0][~outside].float(), (shown[~outside] - 1) / 80)


def test_draws_and_subsets_keep_pictures_and_masks_together(folder: Callable[[Files], DataSpec]) -> None:
    spec = folder(toy_rectangles.picture_files(12))
    everything = load(spec)
    drawn = load(spec, num_samples=5, seed=3)
    chosen = draw(everything, 5, 3).subset([4, 0, 2])
    assert {name: everything.labels[place].tolist() for place, name in enumerate(everything.names)} == {
        f"images/{number:03d}.png": scene(number).mask.tolist() for number in range(12)
    }
    assert chosen.names == tuple(drawn.names[place] for place in (4, 0, 2))
    assert torch.equal(chosen.labels, drawn.labels[[4, 0, 2]])
    assert torch.equal(chosen.batch(0, 3), drawn.batch(0, 5)[[4, 0, 2]])
    assert chosen.labels[1:3].dtype == torch.uint8


def test_pictures_without_a_mask_are_counted_and_said(folder: Callable[[Files], DataSpec]) -> None:
    files = toy_rectangles.picture_files(5) | {"masks/stray.png": png(), "readme.md": b""}
    del files["masks/001.png"], files["masks/003.png"]
    spec = folder(files)
    images = load(spec)
    assert images.names == ("images/000.png", "images/002.png", "images/004.png")
    without = "2 pictures without masks left out."
    assert images.notes == ("3 pictures with masks.", without, "1 other file left out: .md.")
    survey = survey_images(spec, num_classes=3, task=SEGMENTATION)
    assert (survey.layout, survey.num_images, survey.label_counts, survey.proposal) == ("annotations", 3, (), None)
    assert without in survey.notes


def test_pictures_that_have_none_are_measured_without(folder: Callable[[Files], DataSpec]) -> None:
    images = load(folder({f"a/{number}.png": png(number) for number in range(3)}))
    assert images.labels is None
    assert len(images) == 3
    assert images.notes[0] == "No picture has masks: 3 looked at."


def test_without_labels_masks_are_no_pictures_either(folder: Callable[[Files], DataSpec]) -> None:
    spec = replace(folder(toy_rectangles.picture_files(3)), labels=WITHOUT_LABELS)
    images = load(spec)
    assert (len(images), images.labels) == (3, None)
    assert survey_images(spec, num_classes=3, task=SEGMENTATION).num_images == 3
    assert load(spec, names=images.names[1:2]).names == images.names[1:2]


def test_of_splits_one_that_was_not_trained_on_is_taken(folder: Callable[[Files], DataSpec]) -> None:
    files = {
        name.replace("/", f"/{split}/"): content
        for split, number in (("train", 4), ("val", 3))
        for name, content in toy_rectangles.picture_files(number).items()
    }
    images = load(folder(files))
    assert images.names == tuple(f"images/val/{number:03d}.png" for number in range(3))
    assert images.notes == ("3 pictures with masks.", "Taken from the folder val; not used: train.")


def coloured(values: np.ndarray) -> bytes:
    picture = Image.fromarray(values, "P")
    picture.putpalette([0, 0, 0, 128, 0, 0, 0, 128, 0] + [0] * 759)
    return encoded(picture)


MASK = scene(1).mask


@pytest.mark.parametrize(
    "file",
    [
        coloured(MASK),
        encoded(Image.fromarray(MASK.astype(np.uint16))),
        encoded(Image.fromarray(np.stack([MASK] * 3, axis=-1))),
        encoded(Image.fromarray(np.stack([MASK] * 3 + [np.full_like(MASK, 255)], axis=-1))),
        encoded(Image.fromarray(MASK), "TIFF"),
    ],
    ids=["palette", "16 bits", "grey as colours", "with transparency", "tiff"],
)
def test_ways_to_store_class_numbers(folder: Callable[[Files], DataSpec], file: bytes) -> None:
    assert MASK.max() == 2
    one_bit = encoded(Image.fromarray(scene(0).mask > 0))
    images = load(folder(toy_rectangles.picture_files(2) | {"masks/000.png": one_bit, "masks/001.png": file}))
    assert np.array_equal(images.labels[0], scene(0).mask > 0)
    assert np.array_equal(images.labels[1], MASK)


@pytest.mark.parametrize(
    ("mask", "reason"),
    [
        (b"", "its mask: empty file"),
        (png()[:60], "its mask: damaged"),
        (encoded(random_picture(size=(SIDE, SIDE))), "its mask: colours instead of class numbers"),
        (encoded(Image.fromarray(MASK), "JPEG"), "its mask: a JPEG file, which may change class numbers"),
        (encoded(Image.fromarray(MASK[:16])), "its mask: 32 × 16 pixels, and the picture has 32 × 32"),
        (encoded(Image.fromarray(np.full((SIDE, SIDE), 256, np.uint16))), "its mask: class numbers above 255"),
        (encoded(Image.new("L", (9000, 9000))), "its mask: 9,000 × 9,000 pixels, more than 64 million"),
    ],
)
def test_a_picture_whose_mask_cannot_be_used_is_replaced_and_told(folder, mask, reason) -> None:
    spec = folder(toy_rectangles.picture_files(6))
    first = load(spec, num_samples=2, seed=1).names
    (Path(spec.path) / first[0].replace("images", "masks")).write_bytes(mask)
    images = load(spec, num_samples=2, seed=1)
    assert len(images) == 2
    assert first[0] not in images.names
    assert first[1] in images.names
    numbers = [int(name[7:10]) for name in images.names]
    assert all(np.array_equal(images.labels[place], scene(number).mask) for place, number in enumerate(numbers))
    told = next(note for note in images.notes if "cannot be used" in note)
    assert f"{first[0]} ({reason}" in told


def test_a_set_of_which_no_mask_can_be_used_is_refused(folder: Callable[[Files], DataSpec]) -> None:
    files = {name: b"" if "masks" in name else content for name, content in toy_rectangles.picture_files(3).items()}
    with pytest.raises(InvalidDataset, match=r"3 files in set cannot be used as a picture with its mask: .*empty file"):
        load(folder(files))


def turned(mark: int) -> dict[str, bytes]:
    picture = Image.fromarray(np.random.default_rng(0).integers(0, 3, (24, 30), dtype=np.uint8) * 100 + 1)
    exif = picture.getexif()
    exif[0x0112] = mark
    values = (np.asarray(picture) - 1) // 100
    return {"images/1.png": encoded(picture, exif=exif), "masks/1.png": encoded(Image.fromarray(values))}


@pytest.mark.parametrize("mark", [2, 6, 8])
def test_a_mask_turns_with_its_picture(folder: Callable[[Files], DataSpec], mark: int) -> None:
    spec = folder(turned(mark))
    how = replace(PLAIN, input_shape=(1, 24, 24), mean=(0.0,), std=(1.0,))
    stored, upright = load(spec, preprocessing=how), load(replace(spec, upright=True), preprocessing=how)
    for images in (stored, upright):
        shown = (images.batch(0, 1)[0, 0] * 255).round()
        assert torch.equal(images.labels[0].float(), (shown - 1) / 100)
        assert any("1 picture with a rotation mark: masks are read as drawn on" in note for note in images.notes)
    assert not torch.equal(stored.labels, upright.labels)


def load_boxes(spec: DataSpec, **more: Any) -> PreparedImages:
    how = replace(PLAIN, input_shape=(3, shapes_detector.SIDE, shapes_detector.SIDE))
    images = load_images(spec, how, num_classes=4, task=DETECTION, class_names=SHAPE_NAMES, **more)
    assert isinstance(images, PreparedImages)
    return images


def test_boxes_are_one_object_for_each_image(folder):
    spec = folder(shapes_detector.picture_files(8))
    images = load_boxes(spec)
    assert isinstance(images.labels, tuple)
    for number, target in enumerate(images.labels):
        _, rectangles = shapes_detector.scene(number)
        assert torch.equal(target["boxes"], torch.tensor([box[1:] for box in rectangles]).float().reshape(-1, 4))
        assert target["labels"].tolist() == [box[0] for box in rectangles]
    assert "8 pictures with boxes." in images.notes
    drawn = load_boxes(spec, num_samples=3, seed=2)
    places = [images.names.index(name) for name in drawn.names]
    assert all(torch.equal(a["boxes"], images.labels[b]["boxes"]) for a, b in zip(drawn.labels, places, strict=True))
    assert images.subset([5, 1]).labels == (images.labels[5], images.labels[1])
    assert images.labels[2:4] == images.subset([2, 3]).labels


def test_a_chosen_file_of_boxes_is_read(folder):
    files = shapes_detector.picture_files(4)
    few = shapes_detector.picture_files(2)["instances.json"]
    files |= {"aaa.json": files.pop("instances.json"), "other/few.json": few}
    assert len(load_boxes(folder(files))) == 4
    assert survey_images(folder(files), num_classes=4, task=DETECTION).tables == ("aaa.json", "other/few.json")
    chosen = load_boxes(replace(folder(files), labels="other/few.json"))
    assert len(chosen) == 2
    assert "2 pictures without boxes left out." in chosen.notes
    with pytest.raises(InvalidDataset, match=r"no file or folder none\.json in set"):
        load_boxes(replace(folder(files), labels="none.json"))


@dataclass(frozen=True, kw_only=True)
class LineReader(AnnotationReader):
    """One text file for each picture, with a line ``class x y width height`` in shares of its sides, as YOLO's."""

    def find(self, listing: Listing) -> AnnotationFiles:
        texts = [path for path in listing.others if path.endswith(".txt")]
        return AnnotationFiles(files=pairs_by_stem(listing.pictures, texts)[0])

    def read(self, content: bytes) -> Any:
        return np.array([[float(cell) for cell in line.split()] for line in content.decode().splitlines()])

    def place(self, annotation: Any, geometry: PictureGeometry) -> Any:
        centres, halves = annotation[:, 1:3], annotation[:, 3:5] / 2
        return geometry.boxes(np.concatenate([centres - halves, centres + halves], 1) * (2 * geometry.size))


def test_a_text_file_for_each_picture(tmp_path: Path) -> None:
    task = replace(DETECTION, annotations=LineReader(words=("line", "lines")))
    files = {
        f"images/{number}.png": png(number) if number else encoded(random_picture(size=(40, 20))) for number in range(4)
    }
    files |= {"labels/0.txt": b"1 0.5 0.5 0.1 0.5\n", "labels/1.txt": b"1 many\n", "classes.txt": b"red"}
    spec = DataSpec(kind="archive", path=str(write_zip(tmp_path / "a.zip", files)))
    images = load(spec, task, preprocessing=replace(PLAIN, input_shape=(3, 40, 40)))
    assert images.labels[0].tolist() == [[16, 10, 24, 30]]
    assert images.names == ("images/0.png",)
    assert images.notes == (
        "2 pictures with lines.",
        "2 pictures without lines left out.",
        "1 file that cannot be used left out: images/1.png (its line: could not convert string to float: 'many').",
        "1 other file left out: .txt.",
    )


class FailingReader(LineReader):
    """Reads all files at once, as another package may, and checks nothing."""

    def find(self, listing: Listing) -> AnnotationFiles:
        return AnnotationFiles(parsed=json.loads(listing.read("boxes.json"))["images"])


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"{", "Expecting property name"),
        (b"[1, 2]", "TypeError"),
        (b"{}", "KeyError: 'images'"),
        (b"[" * 100_000, "RecursionError"),
        (b"\xff\xfe\x00", "codec can't decode"),
    ],
)
def test_whatever_a_reader_raises_is_a_refusal(folder, content, said):
    task = replace(DETECTION, annotations=FailingReader(words=("box", "boxes")))
    spec = folder({"images/0.png": png(0), "images/1.png": png(1), "boxes.json": content})
    for ask in (lambda: load(spec, task), lambda: survey_images(spec, num_classes=3, task=task)):
        with pytest.raises(InvalidDataset, match=f"The boxes in set cannot be read .*{said}"):
            ask()
    without = load(replace(spec, labels=WITHOUT_LABELS), task)
    assert (len(without), without.labels) == (2, None)
    assert "The boxes in set cannot be read" in without.notes[0]


@pytest.mark.parametrize("kind", ["folder", "zip"])
def test_masks_are_no_class_to_a_classifier(tmp_path: Path, kind: str) -> None:
    path = (write_folder if kind == "folder" else write_zip)(tmp_path / "set", toy_rectangles.picture_files(4))
    spec = DataSpec(kind="folder" if kind == "folder" else "archive", path=str(path))
    sentence = (
        "4 files in masks left out: they are masks of the pictures beside them, which are no class and which this task "
        "does not read."
    )
    for labels in ("", WITHOUT_LABELS):
        images = load(replace(spec, labels=labels), CLASSIFICATION)
        assert (len(images), images.labels) == (4, None)
        assert images.notes[0] == sentence
        survey = survey_images(replace(spec, labels=labels), num_classes=3, task=CLASSIFICATION)
        assert (survey.layout, survey.num_images, survey.notes) == ("unlabelled", 4, (sentence,))


def test_class_folders_among_pictures_with_masks_are_classes(folder: Callable[[Files], DataSpec]) -> None:
    places = ("images/0", "images/1", "masks/0", "masks/1")
    images = load(
        folder({f"{place}/{number}.png": png(number) for place in places for number in range(2)}), CLASSIFICATION
    )
    assert images.names == ("images/0/0.png", "images/0/1.png", "images/1/0.png", "images/1/1.png")
    assert images.labels.tolist() == [0, 0, 1, 1]


def test_a_table_beside_pictures_with_masks_names_the_pictures(folder: Callable[[Files], DataSpec]) -> None:
    table = {"labels.csv": b"file,label\n000.png,1\n001.png,2\n"}
    images = load(folder(toy_rectangles.picture_files(2) | table), CLASSIFICATION)
    assert images.labels.tolist() == [1, 2]


@pytest.mark.parametrize(
    "classes", [("mask", "no_mask"), ("masks", "hats"), ("with_mask", "without_mask"), ("gt", "m3")]
)
def test_classes_that_are_called_like_masks_stay_classes(folder, classes) -> None:
    spec = folder({f"{name}/{number}.png": png(number) for name in classes for number in range(3)})
    survey = survey_images(spec, num_classes=2, task=CLASSIFICATION)
    assert dict(survey.label_counts) == dict.fromkeys(classes, 3)


def test_folders_that_a_person_confirmed_as_classes_stay_classes(folder: Callable[[Files], DataSpec]) -> None:
    spec = replace(folder(toy_rectangles.picture_files(2)), class_map=(("images", 0), ("masks", 1)))
    assert load(spec, CLASSIFICATION).labels.tolist() == [0, 0, 1, 1]


def digest(value: Any) -> bytes:
    return b"".join(bytes_of(value))


def test_targets_that_differ_have_other_bytes() -> None:
    boxes = {"boxes": torch.tensor([[0.0, 1.0, 2.0, 3.0]]), "labels": torch.tensor([1])}
    other = boxes | {"labels": torch.tensor([2])}
    values = [
        (boxes,),
        (other,),
        (boxes, other),
        (other, boxes),
        ((), (1.5, "a")),
        ((1.5,), ("a",)),
        (np.zeros((2, 3)),),
        (np.zeros((3, 2)),),
        (torch.zeros(2, 3),),
        (torch.zeros(3, 2),),
        (None, True),
        (Scene(picture=np.zeros(2, np.uint8), mask=np.zeros(2, np.uint8), rectangles=()),),
        (Scene(picture=np.zeros(2, np.uint8), mask=np.ones(2, np.uint8), rectangles=()),),
    ]
    assert len({digest(value) for value in values}) == len(values)
    assert digest((dict(reversed(list(boxes.items()))),)) == digest((boxes,))
    labels = torch.arange(5)
    assert digest(labels) == labels.numpy().tobytes()  # as runs of before were keyed
    with pytest.raises(TypeError, match="holds a object"):
        digest((object(),))


@pytest.mark.parametrize(("module", "read"), [(toy_rectangles, load), (shapes_detector, load_boxes)])
def test_a_set_with_annotations_travels_to_other_processes(module, read, folder):
    images = read(folder(module.picture_files(4))).subset([3, 1])
    other = pickle.loads(pickle.dumps(images))
    assert digest(other.labels) == digest(images.labels)
    assert torch.equal(other.batch(0, 2), images.batch(0, 2))
    assert type(other.labels) is type(images.labels)


_QUICK = (
    *("mask: a smaller one", "mask: 16 bits beyond 255", "mask: colours", "mask: 100,000 pixels a side"),
    *("COCO for detection: a box of 401 digits", "COCO for detection: a box outside of its picture"),
    *("COCO for detection: other pictures", "COCO for segmentation: a polygon of NaN"),
    *("COCO for segmentation: 400,000 corners", "COCO for segmentation: 60,000 polygons"),
    *("COCO for segmentation: a class that is true", "COCO for detection: a number of 100,000 digits"),
    *("YOLO: 6 columns", "YOLO: NaN", "VOC: entities that grow", "VOC: an endless size"),
)
"""``soak.annotations`` reads them all."""


def test_hostile_annotations_are_refused_with_one_sentence(tmp_path: Path) -> None:
    bad = {each.family: each for each in by_hand(_QUICK)}
    assert bad.keys() == set(_QUICK)
    outcomes = {name: outcome_of(each, write_zip(tmp_path / "a.zip", each.files)) for name, each in bad.items()}
    assert not {name: outcome for name, outcome in outcomes.items() if outcome not in bad[name].allowed}
