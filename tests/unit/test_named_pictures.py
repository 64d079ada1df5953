"""Pictures of a run by their names, for the two files that answer them differently."""

import io
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from senseapp.core.errors import InvalidDataset, NotFound
from senseapp.data.load import load_demo_images, load_images
from senseapp.networks.loaded import Preprocessing
from senseapp.records.spec import DataSpec, RunSpec
from senseapp.server.backend import Backend
from senseapp.server.service import Service
from senseapp.tasks import CLASSIFICATION
from tests.pages.conftest import finish
from tests.pages.records import opener
from tests.pictures import class_files, write_zip

pytestmark = pytest.mark.slow  # starts the process that decodes pictures

LOOK = Preprocessing(input_shape=(3, 24, 24), mean=(0.5,) * 3, std=(0.5,) * 3)


def test_only_the_named_pictures_of_an_archive_are_read_and_look_as_in_the_run(tmp_path: Path) -> None:
    spec = DataSpec(kind="archive", path=str(write_zip(tmp_path / "photos.zip", class_files())))
    whole = load_images(spec, LOOK, num_classes=3, task=CLASSIFICATION)
    wanted = [whole.names[place] for place in (7, 2, 10)]
    found = load_images(spec, LOOK, num_classes=3, task=CLASSIFICATION, with_labels=False, names={*wanted, "gone.png"})
    assert sorted(found.names) == sorted(wanted)
    for place, name in enumerate(found.names):
        own = whole.names.index(name)
        torch.testing.assert_close(found.batch(place, place + 1), whole.batch(own, own + 1))
    with pytest.raises(InvalidDataset, match="no longer where the run found them"):
        load_images(spec, LOOK, num_classes=3, task=CLASSIFICATION, with_labels=False, names={"gone.png"})
    Path(spec.path).unlink()
    with pytest.raises(InvalidDataset, match="no folder or archive"):
        load_images(spec, LOOK, num_classes=3, task=CLASSIFICATION, with_labels=False, names=set(wanted))


@pytest.fixture
def service(tmp_path: Path):
    backend = Backend(tmp_path / "home", open_session=opener(), workers=0)
    yield Service(backend)
    backend.close()


def test_the_owner_of_a_run_sees_them_and_nobody_else(service: Service) -> None:
    run_id = finish(service, service._backend, RunSpec())
    digits = load_demo_images()
    names = [digits.names[place] for place in (3, 700)]
    found = service.work.pictures(run_id, names)
    assert set(found) == set(names)
    for name, content in found.items():
        shown = np.asarray(Image.open(io.BytesIO(content)).convert("L").resize((32, 32), Image.Resampling.NEAREST))
        own = digits.images[digits.names.index(name)][0]
        assert np.corrcoef(shown.ravel(), own.numpy().ravel())[0, 1] > 0.999
    with pytest.raises(NotFound):
        Service(service._backend, owner="somebody else").work.pictures(run_id, names)


def test_noise_has_no_pictures(service: Service) -> None:
    run_id = finish(service, service._backend, replace(RunSpec(), data=DataSpec(kind="random")))
    assert service.work.pictures(run_id, ["0", "1"]) == {}
