"""With the real engine: what is taken from an earlier run is bit for bit what would have been measured."""

from dataclasses import replace

import pytest
import timm
from safetensors.torch import save_file

from senseapp.compressions import PruningConfig, QuantizationConfig, SparsityConfig
from senseapp.descriptions import CompressionConfig
from senseapp.records.spec import DataSpec, ModelSpec, RunSpec, SensitivitySpec
from senseapp.server.backend import Backend
from senseapp.server.service import Service
from tests.cases import first_of

pytestmark = pytest.mark.slow


def a_service(home, owner="ann", **options):
    return Service(Backend(home, workers=0, data_roots=(home,), **options), owner)


def finished(service, spec, title=""):
    run_id = service.start(spec, title=title)
    service._backend.runner.run_next()
    assert service.snapshot(run_id).error == ""
    return run_id


def settings(compression, *levels, **changes):
    given = {"num_samples": 24, "layers": ("layer3*", "fc")} | changes
    return RunSpec(sensitivity=SensitivitySpec(compression=compression, levels=levels, **given))


def numbers(result):
    return {item.key: replace(item, seconds=0.0) for item in result.measurements}


def figures(service, run_id):
    return numbers(service.result(run_id))


CASES: list[tuple[str, CompressionConfig, tuple[float, ...], tuple[float, ...]]] = [
    ("magnitude", SparsityConfig(), (0.5, 0.9), (0.25, 0.5, 0.9)),
    ("random", SparsityConfig(criterion="random"), (0.5,), (0.3, 0.5)),
    ("wanda", SparsityConfig(criterion="wanda"), (0.5,), (0.5, 0.7)),
    ("pruning", PruningConfig(), (0.5,), (0.25, 0.5)),
    ("activations", QuantizationConfig(activations=True), (4.0,), (8.0, 4.0)),
]


@pytest.mark.parametrize(("_name", "compression", "first", "second"), first_of(CASES), ids=[case[0] for case in CASES])
def test_a_wider_run_takes_what_a_narrower_one_measured(tmp_path, _name, compression, first, second):
    service = a_service(tmp_path / "home")
    narrow = finished(service, settings(compression, *first), "Monday")
    wide_spec = settings(compression, *second, layers=("layer3*", "fc", "stem*"))
    wide = finished(service, wide_spec)
    alone = a_service(tmp_path / "other")
    fresh = finished(alone, wide_spec)
    layouts = [service.result(run_id).environment["micro_batch"] for run_id in (narrow, wide)]
    assert layouts[0] == layouts[1]
    if alone.result(fresh).environment == service.result(wide).environment:  # the trial may choose another layout
        assert figures(service, wide) == figures(alone, fresh)
    taken = numbers(service.result(narrow))
    assert {key: figures(service, wide)[key] for key in taken} == taken
    sentence = service.run(wide).origin
    before, after = (
        sum(item.status == "measured" for item in found.values()) for found in (taken, figures(service, wide))
    )
    assert sentence.startswith(f"{before} of {after} measurements taken from run “Monday”")
    assert service.result(wide).notes[0].startswith(f"{before} of {after} measurements taken")
    assert service.run(narrow).origin == ""


@pytest.mark.wide
def test_an_identical_run_measures_nothing_again(tmp_path, monkeypatch):
    service = a_service(tmp_path)
    spec = settings(SparsityConfig(), 0.5)
    first = finished(service, spec)
    from senseapp.measure.measurer import Measurer

    monkeypatch.setattr(Measurer, "measure", lambda measurer, jobs, baseline: (pytest.fail("measured") for _ in jobs))
    second = finished(service, spec)
    assert figures(service, second) == figures(service, first)
    assert service.result(second).seconds < service.result(first).seconds + 60


def test_other_settings_images_and_people_share_nothing(tmp_path):
    service = a_service(tmp_path)
    finished(service, settings(SparsityConfig(), 0.5))
    others = {
        "seed": settings(SparsityConfig(), 0.5, seed=1),
        "images": settings(SparsityConfig(), 0.5, num_samples=25),
        "criterion": settings(SparsityConfig(criterion="random"), 0.5),
        "precision": settings(SparsityConfig(), 0.5, precision="bf16"),
    }
    for what, spec in others.items():
        assert service.run(finished(service, spec)).origin == "", what
    bob = Service(service._backend, "bob")
    assert bob.run(finished(bob, settings(SparsityConfig(), 0.5))).origin == ""


def test_equal_weights_are_known_by_their_content_and_others_told_apart(tmp_path):
    service = a_service(tmp_path)
    weights = timm.create_model("test_resnet", num_classes=10).state_dict()
    for name, nudge in (("a", 0.0), ("b", 0.0), ("c", 1e-6)):
        moved = weights | {"fc.bias": weights["fc.bias"] + nudge}
        save_file({key: value.clone() for key, value in moved.items()}, tmp_path / f"{name}.safetensors")

    def run_of(name):
        model = ModelSpec(library="timm", name="test_resnet", checkpoint=str(tmp_path / f"{name}.safetensors"))
        chosen = SensitivitySpec(levels=(0.5,), num_samples=4, layers=("fc", "*conv1"))
        return RunSpec(model=model, data=DataSpec(kind="random"), sensitivity=chosen)

    finished(service, run_of("a"), "A")
    assert "taken from run “A”" in service.run(finished(service, run_of("b"))).origin
    assert service.run(finished(service, run_of("c"))).origin == ""


@pytest.mark.wide
def test_a_run_that_took_measurements_and_was_stopped_goes_on_alike(tmp_path):
    service = a_service(tmp_path)
    finished(service, settings(SparsityConfig(), 0.5), "Monday")
    whole = finished(service, settings(SparsityConfig(), 0.5, 0.8))
    store = service._backend.store
    folder = store.folder(whole)
    expected = service.result(whole)
    (folder.path / "result.json").unlink()
    lines = (folder.path / "measurements.jsonl").read_bytes().splitlines(keepends=True)
    (folder.path / "measurements.jsonl").write_bytes(b"".join(lines[:-3]))
    store.set_state(whole, "cancelled")
    service.resume(whole)
    service._backend.runner.run_next()
    found = service.result(whole)
    assert numbers(found) == numbers(expected)
    assert found.notes == expected.notes
