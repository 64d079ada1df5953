import hashlib
import io
import json
import zipfile

import pytest

from senseapp.core.errors import InvalidSchedule
from senseapp.formats.plain import read_schedule
from senseapp.formats.registry import FORMATS, MANIFEST_NAME, build_zip
from senseapp.records.schedule import ResourceBudget
from senseapp.solve.methods import make_schedule
from senseapp.solve.problem import manual_schedule
from tests.schedule_cases import SIZES, profile_of, quantized_run, sparse_run

PROFILE = profile_of(SIZES)
SPARSE = make_schedule(sparse_run(), budget=ResourceBudget(kind="params", target=0.6))


def files_of(content):
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        assert archive.testzip() is None
        return {name: archive.read(name) for name in archive.namelist()}


def test_the_manifest_lists_every_file_with_its_hash():
    content = build_zip(SPARSE, PROFILE)
    files = files_of(content)
    listed = json.loads(files.pop(MANIFEST_NAME))
    assert listed["files"] == {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
    assert set(listed["versions"]) >= {"python", "senseapp", "torch", "timm"}
    assert read_schedule(files["schedule.json"], PROFILE) == SPARSE
    assert build_zip(SPARSE, PROFILE) == content


@pytest.mark.parametrize(
    ("schedule", "compression"),
    [(SPARSE, "sparsity"), (manual_schedule(quantized_run(), {"conv1": 4}), "quantization")],
)
def test_every_format_that_fits_is_there_and_the_others_are_explained(schedule, compression):
    files = files_of(build_zip(schedule, PROFILE))
    readme = files["README.txt"].decode()
    for target in FORMATS.values():
        name = f"schedule{target.suffix}"
        fits = compression in (target.compressions or (compression,)) and target.render is not None
        assert (name in files) == fits
        assert (f"(left out) {name}: " in readme) == (not fits)


def test_further_files_are_added_and_hashed():
    files = files_of(build_zip(SPARSE, PROFILE, extra={"graph.pt2": b"abc"}))
    assert files["graph.pt2"] == b"abc"
    assert json.loads(files[MANIFEST_NAME])["files"]["graph.pt2"] == hashlib.sha256(b"abc").hexdigest()
    for taken in ("schedule.json", MANIFEST_NAME):
        with pytest.raises(InvalidSchedule, match="Two files"):
            build_zip(SPARSE, PROFILE, extra={taken: b""})


def test_the_readme_tells_of_an_overlay_that_is_added_or_why_it_is_not():
    overlay = {"schedule.model-explorer.json": b"{}"}
    added = files_of(build_zip(SPARSE, PROFILE, extra=overlay))["README.txt"].decode()
    assert "\nschedule.model-explorer.json: Google's Model Explorer" in added
    missing = files_of(build_zip(SPARSE, PROFILE, left_out="It cannot be exported."))["README.txt"].decode()
    assert "(left out) schedule.model-explorer.json: It cannot be exported." in missing
    assert "(left out) schedule.modelopt.json: NVIDIA" in missing


def test_a_schedule_of_another_model_is_refused():
    with pytest.raises(InvalidSchedule, match="another model"):
        build_zip(SPARSE, profile_of({"a": 1}))
