import csv
import json
from pathlib import Path

import pytest

from senseapp.cli import analyze
from senseapp.cli.main import main
from senseapp.core.codec import loads
from senseapp.core.errors import InvalidDataset
from senseapp.records.measurement import RunResult
from senseapp.records.spec import DataSpec
from senseapp.store.run_folder import RunFolder
from tests.fake_session import LAYERS, TOTAL, FakeEngine

DEMO = ("analyze", "--model", "demo", "--data", "demo", "--compression", "sparsity", "--levels", "25,50")


@pytest.fixture
def engine(monkeypatch):
    made = FakeEngine()
    monkeypatch.setattr(analyze, "open_local_session", made)
    return made


@pytest.fixture
def out(tmp_path):
    return tmp_path / "new" / "run"


def run(*arguments, out):
    return main([*arguments, "--out", str(out)])


def spec_in(out):
    return RunFolder(out).spec()


def one_line(captured):
    (line,) = captured.err.splitlines()
    assert line.startswith("senseapp: ")
    assert "Traceback" not in captured.err
    return line


def test_analyze_writes_its_three_files_and_says_the_headline(engine, out, capsys):
    assert run(*DEMO, out=out) == 0
    captured = capsys.readouterr()
    assert captured.out.startswith(
        "Most fragile: head, harm 0.040 at 50 %. 1 of 4 layers loses nothing measurable: 100 images"
    )
    summary = loads((out / "result.json").read_text(), RunResult).summary
    assert captured.out.splitlines()[0] == summary
    assert f"{TOTAL}/{TOTAL}" in captured.err
    assert len(loads((out / "result.json").read_text(), RunResult).measurements) == TOTAL
    with (out / "sensitivity.csv").open() as stream:
        assert {row["level"] for row in csv.DictReader(stream)} == {"25", "50"}
    assert set(json.loads((out / "targets.json").read_text())) == set(LAYERS)
    assert (out / "result.json").stat().st_mode & 0o444 == (out / "lock").stat().st_mode & 0o444


def test_an_interrupted_run_is_resumed_by_the_same_command(engine, out, capsys, tmp_path):
    def stop(number):
        if number == 3:
            raise KeyboardInterrupt

    engine.before_yield = stop
    assert run(*DEMO, out=out) == 130
    assert "the same command goes on from there" in capsys.readouterr().err
    assert not RunFolder(out).finished
    engine.before_yield = lambda number: number >= 3 or pytest.fail("measured twice")
    assert run(*DEMO, out=out) == 0
    whole = tmp_path / "whole"
    engine.before_yield = lambda number: None
    assert run(*DEMO, out=whole) == 0
    for name in ("sensitivity.csv", "targets.json", "measurements.jsonl"):
        assert (out / name).read_text() == (whole / name).read_text()


def test_a_finished_run_is_answered_from_its_folder(engine, out):
    assert run(*DEMO, out=out) == 0
    (out / "targets.json").unlink()
    engine.failure = AssertionError("loaded the model again")
    assert run(*DEMO, out=out) == 0
    assert (out / "targets.json").exists()


def test_another_spec_is_refused_and_nothing_is_lost(engine, out, capsys):
    assert run(*DEMO, out=out) == 0
    before = (out / "result.json").read_bytes()
    capsys.readouterr()
    assert run(*DEMO, "--seed", "7", out=out) == 2
    assert "other settings (seed)" in one_line(capsys.readouterr())
    assert (out / "result.json").read_bytes() == before


def test_after_a_refused_model_the_corrected_command_works(engine, out, capsys):
    engine.failure = InvalidDataset("No\nimages.")
    assert run(*DEMO, "--layers", "nothing.*", out=out) == 2
    assert one_line(capsys.readouterr()) == "senseapp: No images."
    engine.failure = None
    assert run(*DEMO, out=out) == 0
    assert engine.earlier == [None, None]


def test_levels_are_percent_or_bits(engine, out, tmp_path):
    assert run(*DEMO, out=out) == 0
    assert spec_in(out).sensitivity.levels == (0.25, 0.5)
    assert run(*(*DEMO[:6], "quantization", "--levels", "8, 4,3"), out=tmp_path / "bits") == 0
    assert spec_in(tmp_path / "bits").sensitivity.levels == (8, 4, 3)


def test_every_option_reaches_the_settings(engine, out, tmp_path):
    photos = tmp_path / "photos"
    photos.mkdir()
    weights = tmp_path / "weights.safetensors"
    weights.write_bytes(b"")
    status = run(
        *("analyze", "--model", "timm/resnet18", "--checkpoint", str(weights), "--num-classes", "7"),
        *("--in-chans", "1", "--img-size", "64", "--data", str(photos), "--compression", "sparsity"),
        *("--levels", "30", "--metric", "kl", "--samples", "12", "--batch-size", "4", "--mean", "0.1,0.2,0.3"),
        *("--std", "1,2,3", "--crop-pct", "0.9", "--granularity", "filter", "--criterion", "random"),
        *("--layers", "layer1.*, fc", "--mode", "quick", "--precision", "auto", "--seed", "5", "--adapt"),
        out=out,
    )
    assert status == 0
    spec = spec_in(out)
    model, data, settings = spec.model, spec.data, spec.sensitivity
    assert (model.title, model.checkpoint, model.num_classes) == ("timm/resnet18", str(weights), 7)
    assert (model.in_chans, model.img_size, model.pretrained) == (1, 64, False)
    assert (data.kind, data.path) == ("folder", str(photos))
    assert (data.mean, data.std, data.crop_pct) == ((0.1, 0.2, 0.3), (1, 2, 3), 0.9)
    assert (settings.compression.granularity, settings.compression.criterion) == ("filter", "random")
    assert (settings.levels, settings.metric, settings.num_samples, settings.batch_size) == ((0.3,), "kl", 12, 4)
    assert (settings.layers, settings.mode, settings.precision) == (("layer1.*", "fc"), "quick", "auto")
    assert (settings.seed, settings.adapted) == (5, True)


def test_an_unknown_checkpoint_is_left_to_recognition(engine, out, tmp_path):
    (tmp_path / "weights.pth").write_bytes(b"")
    arguments = ("analyze", "--model", "auto", "--checkpoint", str(tmp_path / "weights.pth"), *DEMO[3:])
    assert run(*arguments, out=out) == 0
    assert spec_in(out).model.library == "auto"
    assert spec_in(out).data.preparation == "auto"


def test_a_checkpoint_may_keep_its_architectures_own_preprocessing(engine, out, tmp_path):
    (tmp_path / "weights.pth").write_bytes(b"")
    arguments = ("analyze", "--model", "auto", "--checkpoint", str(tmp_path / "weights.pth"), *DEMO[3:])
    assert run(*arguments, "--preprocessing", "own,bgr", out=out) == 0
    assert (spec_in(out).data.preparation, spec_in(out).data.channel_order) == ("given", "bgr")


def test_a_file_of_images_is_an_archive(engine, out, tmp_path):
    (tmp_path / "photos.zip").write_bytes(b"")
    assert run(*(*DEMO[:3], "--data", str(tmp_path / "photos.zip"), *DEMO[5:]), out=out) == 0
    assert spec_in(out).data.kind == "archive"


def test_quantization_options(engine, out):
    options = ("--per-tensor", "--activations", "--observer", "minmax", "--activation-bits", "8")
    assert run(*DEMO[:6], "quantization", "--levels", "4", *options, out=out) == 0
    found = spec_in(out).sensitivity.compression
    assert (found.granularity, found.activations, found.observer, found.input_bits) == ("tensor", True, "minmax", 8)


def test_the_format_of_numbers_is_an_option(engine, out):
    assert run(*DEMO[:6], "quantization", "--levels", "8", "--number-format", "fp8_e4m3", out=out) == 0
    assert spec_in(out).sensitivity.compression.number_format == "fp8_e4m3"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"--levels": "0"}, "above 0 % and below 100 %, got 0 %"),
        ({"--levels": "nan"}, "got nan %"),
        ({"--levels": "50,50"}, "Each level may be given once"),
        ({"--compression": "quantization", "--levels": "1"}, "2 to 8, got 1"),
        ({"--compression": "wishing"}, "invalid choice: 'wishing'"),
        ({"--metric": "vibes"}, "metric must be one of top1"),
        ({"--samples": "0"}, "num_samples must be at least 1"),
        ({"--criterion": "luck"}, "Sparsity criterion must be one of"),
        ({"--per-tensor": None}, "--per-tensor has no meaning for sparsity"),
        (
            {"--compression": "quantization", "--levels": "4", "--per-tensor": None, "--granularity": "channel"},
            "contradicts",
        ),
        (
            {"--compression": "quantization", "--levels": "4", "--activation-bits": "8"},
            "--activation-bits has no meaning beside",
        ),
        ({"--model": "timm/resnet1888"}, "timm/resnet18"),
        ({"--model": "auto"}, "Add --checkpoint FILE"),
        ({"--preprocessing": "auto"}, "--preprocessing auto is for a checkpoint"),
        (
            {"--preprocessing": "grb"},
            "--preprocessing takes auto or own, rgb or bgr, and upright, by commas; got 'grb'",
        ),
        ({"--model": "timm/resnet18", "--checkpoint": "missing.pth"}, "There is no file at missing.pth"),
        ({"--data": "missing"}, "There is no folder or archive of images at missing"),
        ({"--std": "0"}, "std must hold numbers above 0"),
        ({"--unknown": "x"}, "Unrecognized arguments: --unknown x"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_status_2(engine, out, capsys, changes, said):
    options = {"--model": "demo", "--data": "demo", "--compression": "sparsity", "--levels": "50"} | changes
    arguments = [word for name, value in options.items() for word in (name, value) if word is not None]
    assert run("analyze", *arguments, out=out) == 2
    assert said in one_line(capsys.readouterr())
    assert engine.opened == []
    assert not Path(out).exists()


def test_missing_arguments_name_themselves(capsys):
    assert main(["analyze", "--model", "demo"]) == 2
    assert "required: --data, --out" in one_line(capsys.readouterr())
    assert main([]) == 2
    assert "COMMAND" in one_line(capsys.readouterr())


def test_a_folder_that_cannot_be_made_is_one_sentence(engine, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert run(*DEMO, out=tmp_path / "file" / "run") == 2
    assert "cannot use the folder run" in one_line(capsys.readouterr())


def with_data(name, *more):
    return [*DEMO[:4], name, *DEMO[5:], *more]


def test_an_image_set_is_named_like_a_model(engine, out):
    assert run(*with_data("torchvision/mnist"), out=out) == 0
    assert spec_in(out).data == DataSpec(kind="torchvision", name="mnist")
    assert run(*with_data("torchvision/mnist", "--labels", "none"), out=out.with_name("other")) == 0
    assert spec_in(out.with_name("other")).data.labels == "none"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("torchvision/imagenet",), "torchvision's small sets of images are cifar10, cifar100, mnist"),
        (("torchvision/mnist", "--labels", "labels.csv"), "An image set brings its own labels"),
    ],
)
def test_a_wrong_image_set_is_refused_in_one_line(engine, out, capsys, arguments, sentence):
    assert run(*with_data(*arguments), out=out) == 2
    assert sentence in one_line(capsys.readouterr())
