"""From a spec to prepared images: draws, labels, what is left out, overrides, memory, previews."""

import dataclasses
import os

import numpy as np
import pytest
import torch

from senseapp.core.errors import InvalidDataset, InvalidSpec
from senseapp.data import reading
from senseapp.data.images import TensorImages, allocate_rows, draw, draw_order
from senseapp.data.load import load_images
from senseapp.data.pictures import preview, survey_images
from senseapp.records.spec import WITHOUT_LABELS, DataSpec
from senseapp.tasks import CLASSIFICATION
from tests.pictures import COLOUR, GREY, class_files, encoded, png, random_picture, write_folder, write_tar, write_zip


@pytest.fixture
def load(tmp_path):
    """Return a function that packs files in a zip and loads them."""

    def pack_and_load(files, *, preprocessing=COLOUR, num_classes=3, num_samples=None, seed=0, names=(), **settings):
        return load_images(
            DataSpec(kind="archive", path=str(write_zip(tmp_path / "set.zip", files)), **settings),
            preprocessing,
            num_classes=num_classes,
            num_samples=num_samples,
            seed=seed,
            class_names=names,
            task=CLASSIFICATION,
        )

    return pack_and_load


def same(first, second):
    return torch.equal(first.batch(0, len(first)), second.batch(0, len(second))) and first.names == second.names


def test_images_labels_and_names_belong_together(load):
    files = class_files()
    images = load(files)
    assert images.names == tuple(sorted(files))
    assert images.labels.tolist() == [int(name[0]) for name in images.names]
    assert images.labels.dtype == torch.int64
    assert images.batch(0, 12).shape == (12, 3, 8, 8)
    assert torch.equal(images.batch(5, 7), images.batch(0, 12)[5:7])
    assert images.notes == ()
    assert not images.indicative


def test_folder_zip_and_tar_give_the_same_images(tmp_path):
    files = class_files()
    places = {"folder": write_folder(tmp_path / "set", files), "archive": write_zip(tmp_path / "a.zip", files)}
    tar = DataSpec(kind="archive", path=str(write_tar(tmp_path / "a.tgz", files, "w:gz")))
    specs = [DataSpec(kind=kind, path=str(path)) for kind, path in places.items()]
    for num_samples in (None, 5):
        first, *others = [
            load_images(spec, COLOUR, num_classes=3, num_samples=num_samples, seed=3, task=CLASSIFICATION)
            for spec in (*specs, tar)
        ]
        assert all(same(first, other) and torch.equal(first.labels, other.labels) for other in others)


def test_drawing_before_decoding_is_drawing_after_it_and_the_seed_decides(load):
    files = class_files()
    drawn, after = load(files, num_samples=5, seed=1), draw(load(files), 5, 1)
    assert same(drawn, after)
    assert torch.equal(drawn.labels, after.labels)
    assert drawn.names != load(files, num_samples=5, seed=2).names


def test_only_drawn_pictures_are_decoded(load, monkeypatch):
    decoded = []
    original = reading.decoded
    monkeypatch.setattr(
        reading, "decoded", lambda file, *rest, **more: decoded.append(file) or original(file, *rest, **more)
    )
    load(class_files(each=30), num_samples=7)
    assert len(decoded) == 7


def test_broken_pictures_are_left_out_and_told(load):
    images = load(class_files() | {"0/zz.png": b"", "1/zz.png": png()[:90], "2/zz.jpg": b"text"})
    assert len(images) == 12
    assert images.notes == (
        "3 files that cannot be used left out: 0/zz.png (empty file), 1/zz.png (damaged), 2/zz.jpg (not a picture).",
    )


def test_broken_pictures_are_replaced_by_the_next_of_the_draw(load):
    files = class_files(each=40)
    order = [sorted(files)[index] for index in draw_order(len(files), 50, 0)]
    broken = set(order[10:20])
    images = load({name: b"x" if name in broken else file for name, file in files.items()}, num_samples=50)
    assert images.names == tuple(sorted(order[:10] + order[20:60]))
    assert images.labels.tolist() == [int(name[0]) for name in images.names]
    whole = load(files)
    expected = whole.subset([whole.names.index(name) for name in images.names])
    assert same(images, expected)


@pytest.mark.parametrize("broken", [{}, {"0/zz.png": b""}])
def test_fewer_pictures_than_asked_for_are_all_taken_and_said(load, broken):
    whole = load(class_files())
    images = load(class_files() | broken, num_samples=96)
    assert images.names == whole.names
    assert same(images, whole)
    assert "All 12 pictures are measured; 96 were asked for." in images.notes


def test_no_good_picture_at_all(load):
    with pytest.raises(InvalidDataset, match=r"2 files in set\.zip cannot be used as a picture: 0/1\.png \(empty"):
        load({"0/1.png": b"", "1/1.png": b"x"})


def test_an_archive_of_rubbish_is_given_up_early(load, monkeypatch):
    monkeypatch.setattr(reading, "_MOST_UNREADABLE", 20)
    files = {f"0/{i:03}.png": b"x" for i in range(500)} | {"1/good.png": png()}
    with pytest.raises(InvalidDataset, match=r"files in set\.zip cannot be used"):
        load(files, num_samples=1)


def test_unusual_pictures_are_told(load):
    files = class_files() | {
        "0/rgba.png": encoded(random_picture(mode="RGBA")),
        "1/cmyk.tif": encoded(random_picture(mode="CMYK"), "TIFF"),
    }
    assert load(files).notes == (
        "1 picture shown without transparency.",
        "1 picture converted from printing colours (CMYK).",
    )


def test_one_folder_that_is_no_class_is_a_heap(load):
    flat = load({"1.png": png(1), "2.png": png(2)})
    assert flat.notes == ("There are no labels: outputs are compared with the original model's.",)
    images = load({"holiday/1.png": png(1), "holiday/2.png": png(2)})
    assert flat.labels is images.labels is None
    assert images.notes[0] == "All pictures lie in one folder, holiday, which is no class of this model."


def test_folders_that_mean_nothing_are_refused_unless_measured_without_labels(load):
    files = {"unicorn/1.png": png(1), "dragon/1.png": png(2)}
    with pytest.raises(InvalidDataset, match="2 of 2 classes in the images match none of the model's 3"):
        load(files)
    images = load(files, labels=WITHOUT_LABELS)
    assert (len(images), images.labels) == (2, None)


def test_class_names_of_the_model_are_recognised(load):
    images = load({"Dog/1.png": png(1), "cat/1.png": png(2)}, names=("bird", "cat", "dog"))
    assert images.labels.tolist() == [2, 1]
    assert images.class_names == ("bird", "cat", "dog")


def test_folder_names_stand_in_for_class_names_that_are_not_known(load):
    assert load(class_files(("b", "a", "c"))).class_names == ("a", "b", "c")
    assert load({"a/1.png": png(), "b/1.png": png()}, class_map=(("a", 2), ("b", 0))).class_names == ("b", "1", "a")


def test_a_confirmed_mapping_decides(load):
    images = load(class_files(("a", "b", "c"), each=2), class_map=(("a", 2), ("c", 0)))
    assert images.labels.tolist() == [2, 2, 0, 0]
    assert images.names == ("a/0.png", "a/1.png", "c/0.png", "c/1.png")
    assert images.notes == ("1 class without a place in the mapping left out: b.",)


def test_names_are_fit_to_be_shown_and_stored(tmp_path):
    root = write_folder(tmp_path / "set", {"1.png": png()})
    (root / os.fsdecode(b"caf\xe9.png")).write_bytes(png())
    images = load_images(DataSpec(kind="folder", path=str(root)), COLOUR, num_classes=3, task=CLASSIFICATION)
    assert images.names == ("1.png", "caf�.png")
    "".join(images.names).encode()


def test_folders_outside_of_the_roots_are_refused(tmp_path):
    spec = DataSpec(kind="folder", path=str(write_folder(tmp_path / "set", class_files())))
    with pytest.raises(InvalidDataset, match="outside of the folders"):
        load_images(spec, COLOUR, num_classes=3, data_roots=(tmp_path / "other",), task=CLASSIFICATION)
    assert len(load_images(spec, COLOUR, num_classes=3, data_roots=(tmp_path,), task=CLASSIFICATION)) == 12


@pytest.mark.parametrize(("preprocessing", "channels"), [(GREY, 1), (COLOUR, 3)])
def test_grey_and_colour_models(load, preprocessing, channels):
    assert load(class_files(), preprocessing=preprocessing).batch(0, 2).shape == (2, channels, 8, 8)


def test_a_model_of_other_channels_takes_no_pictures(load):
    satellite = dataclasses.replace(COLOUR, input_shape=(13, 8, 8), mean=(0.5,) * 13, std=(0.5,) * 13)
    with pytest.raises(
        InvalidDataset, match=r"2 files .* cannot be used as a picture: .*channels, and the model takes 13"
    ):
        load(class_files(), preprocessing=satellite)


def test_overrides_of_mean_and_std(load):
    plain, changed = load(class_files()), load(class_files(), mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 0.5))
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (COLOUR.mean, COLOUR.std))
    expected = (plain.batch(0, 12) * std + mean) / torch.tensor((1.0, 1.0, 0.5)).view(3, 1, 1)
    torch.testing.assert_close(changed.batch(0, 12), expected)


def test_an_override_needs_one_number_per_channel(load):
    with pytest.raises(InvalidSpec, match="mean must hold one number per channel, 3 for this model, got 1"):
        load(class_files(), mean=(0.5,))


def test_overrides_that_would_change_nothing_are_refused():
    with pytest.raises(InvalidSpec, match="Leave out crop_pct"):
        load_images(
            DataSpec(crop_pct=0.5),
            dataclasses.replace(GREY, input_shape=(1, 32, 32)),
            num_classes=10,
            task=CLASSIFICATION,
        )
    with pytest.raises(InvalidSpec, match="Leave out mean, std"):
        load_images(DataSpec(kind="random", mean=(0.5,), std=(0.5,)), GREY, num_classes=10, task=CLASSIFICATION)


def test_demo_digits_follow_the_models_normalisation():
    grey = dataclasses.replace(GREY, input_shape=(1, 32, 32))
    plain = load_images(DataSpec(), grey, num_classes=10, task=CLASSIFICATION)
    changed = load_images(DataSpec(mean=(0.0,), std=(1.0,)), grey, num_classes=10, task=CLASSIFICATION)
    torch.testing.assert_close(plain.batch(0, 9), (changed.batch(0, 9) - 0.5) / 0.25)
    with pytest.raises(InvalidDataset, match="demo digits are images of shape"):
        load_images(DataSpec(), COLOUR, num_classes=10, task=CLASSIFICATION)


def test_pixels_in_a_file_are_the_same_as_in_memory(load, monkeypatch, tmp_path):
    in_memory = load(class_files())
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(reading, "allocate_rows", lambda *size: allocate_rows(*size, most_in_memory_bytes=0))
    assert same(in_memory, load(class_files()))
    assert [path.name for path in tmp_path.iterdir()] == ["set.zip"]


def test_more_pixels_than_the_disk_holds_are_refused():
    with pytest.raises(InvalidDataset, match=r"GB of temporary disk space .* Measure on fewer samples"):
        allocate_rows(10**12, (3, 224, 224))


def test_preview_shows_the_cropped_pixels(load):
    images = load(class_files())
    shown = preview(images, COLOUR, count=5)
    assert shown.indices == (0, 3, 6, 8, 11)
    expected = images.pixels[images.rows[list(shown.indices)]].permute(0, 2, 3, 1).numpy()
    assert np.array_equal(shown.pictures, expected)
    assert shown.pictures.dtype == np.uint8
    grey = preview(load(class_files(), preprocessing=GREY), GREY)
    assert grey.pictures.shape == (12, 8, 8, 3)
    assert np.ptp(grey.pictures, axis=3).max() == 0
    noise = preview(TensorImages(100 * torch.randn(2, 3, 8, 8)), COLOUR)
    assert (noise.indices, noise.pictures.shape) == ((0, 1), (2, 8, 8, 3))


def test_survey_tells_what_would_be_measured_on(tmp_path):
    files = class_files(("dog", "emu"), each=2) | {"cat/": b"", "readme.md": b""}
    spec = DataSpec(kind="archive", path=str(write_zip(tmp_path / "set.zip", files)))
    survey = survey_images(spec, num_classes=5, class_names=("ant", "bee", "cat", "dog", "fox"), task=CLASSIFICATION)
    assert (survey.title, survey.layout, survey.num_images) == ("set.zip", "class folders", 4)
    assert survey.label_counts == (("cat", 0), ("dog", 2), ("emu", 2))
    assert survey.proposal.pairs == (("cat", 2), ("dog", 3))
    assert survey.proposal.unmatched == ("emu",)
    assert survey.notes == ("1 other file left out: .md.", "1 class folder holds no picture: cat.")


def test_a_survey_of_files_that_are_no_pictures_is_refused(tmp_path) -> None:
    files = {"0/a.png": b"text", "1/b.tif": b"II*\0" + bytes(40)}
    spec = DataSpec(kind="archive", path=str(write_zip(tmp_path / "a.zip", files)))
    with pytest.raises(InvalidDataset, match=r"2 files tried and none is a picture, the first 0/a\.png \(not a pict"):
        survey_images(spec, num_classes=2, task=CLASSIFICATION)
