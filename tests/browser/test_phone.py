"""A checkpoint becomes a file for phones, which a script of our own runs; only where the extra is installed."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from playwright.sync_api import Page, expect

from tests.browser.servers import Server, serving
from tests.browser.steps import offer_checkpoint, open_block
from tests.browser.waiting import at_rest

pytest.importorskip("litert_torch", reason="the extra litert is not installed")
pytestmark = [pytest.mark.browser, pytest.mark.timeout(1200)]  # of a converter that loads for half a minute

MILLISECONDS = 900_000
SCRIPT = """
import json, sys
import numpy as np
from ai_edge_litert.interpreter import Interpreter

network = Interpreter(sys.argv[1])
network.allocate_tensors()
(taken,), (made,) = network.get_input_details(), network.get_output_details()
scores = []
for image in np.load(sys.argv[2]):
    network.set_tensor(taken["index"], image[None])
    network.invoke()
    scores.append(network.get_tensor(made["index"])[0].tolist())
print(json.dumps(scores))
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that makes files at the end of a run."""
    with serving(Server(tmp_path_factory.mktemp("phone"), {"SENSEAPP_RECOMMEND_SECONDS": "600"})) as started:
        yield started


def test_a_checkpoint_becomes_a_file_for_phones(page: Page, tmp_path: Path) -> None:
    torch.manual_seed(0)
    network = timm.create_model("test_resnet", num_classes=4).eval()
    torch.save(network.state_dict(), tmp_path / "colleague.pth")
    page.get_by_role("combobox", name="Where will it run?").click()
    page.get_by_role("option", name="Phone (LiteRT)").click()
    offer_checkpoint(page, tmp_path / "colleague.pth")
    expect(page.get_by_text("Recognised as timm/test_resnet: every name and shape fits")).to_be_visible()
    open_block(page, "Images")
    page.get_by_text("None", exact=True).click()
    at_rest(page)
    button = page.get_by_role("button", name="Run", exact=True)
    expect(button).to_be_enabled()
    button.click()
    file = page.get_by_role("button", name=re.compile(r"^Get the file that runs \(\.tflite\)"))
    expect(file).to_be_visible(timeout=MILLISECONDS)
    expect(page.get_by_text("its times are not a phone's").first).to_be_visible()
    with page.expect_download() as download:
        file.click()
    assert download.value.suggested_filename.endswith(".tflite")
    download.value.save_as(tmp_path / "network.tflite")

    images = torch.randn(8, 3, *network.pretrained_cfg["input_size"][1:])
    np.save(tmp_path / "images.npy", images.numpy())
    (tmp_path / "run.py").write_text(SCRIPT)
    command = [sys.executable, "-I", "run.py", "network.tflite", "images.npy"]
    printed = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True, timeout=120).stdout
    with torch.inference_mode():
        wanted = network(images)
    assert float((torch.tensor(json.loads(printed)) - wanted).norm() / wanted.norm()) < 0.2
