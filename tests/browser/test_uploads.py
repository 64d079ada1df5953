"""Somebody's own weights and pictures, through the real engine: what fits is measured, what is bad is refused."""

from __future__ import annotations

import json
import os
import re
import zipfile
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from playwright.sync_api import Page, expect

from tests.browser.servers import Server
from tests.browser.steps import (
    AMOUNTS,
    make_schedule,
    offer_checkpoint,
    offer_images,
    open_block,
    open_part,
    run_to_results,
)
from tests.pictures import png, write_zip

pytestmark = pytest.mark.browser

NUM_CLASSES = 4
TRACE = "code-was-run"


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint as a training program leaves it, without a word on its architecture."""
    torch.manual_seed(0)
    network = timm.create_model("test_resnet", num_classes=NUM_CLASSES)
    path = tmp_path_factory.mktemp("weights") / "colleague.pth"
    torch.save({"state_dict": network.state_dict(), "epoch": 3}, path)
    return path


def downloaded_schedule(page: Page, folder: Path) -> dict[str, Any]:
    make_schedule(page)
    open_part(page, "Target files")
    expect(page.get_by_text(AMOUNTS)).to_be_visible()
    with page.expect_download() as download:
        page.get_by_role("button", name="Download JSON").click()
    file = folder / "schedule.json"
    download.value.save_as(file)
    schedule: dict[str, Any] = json.loads(file.read_text())
    return schedule


@pytest.mark.wide
def test_a_strangers_checkpoint_and_class_folders_become_a_target_file(
    page: Page, weights: Path, tmp_path: Path
) -> None:
    pictures = {f"{name}/{i}.png": png(10 * place + i) for place, name in enumerate("0123") for i in range(3)}
    pictures["0/broken.png"] = b"not a picture"
    offer_checkpoint(page, weights)
    expect(page.get_by_text("Recognised as timm/test_resnet: every name and shape fits")).to_be_visible()
    expect(page.get_by_text("4 classes (the head is built for them")).to_be_visible()
    offer_images(page, write_zip(tmp_path / "photos.zip", pictures))
    expect(page.get_by_text("13 images · 4 classes · from class folders")).to_be_visible()
    expect(page.get_by_text("4 of 4 matched, by number")).to_be_visible()
    page.get_by_role("button", name="Measure it like this all the same").click()  # it was never trained
    expect(page.get_by_text(re.compile("Uncompressed, the model gets .* of 12 images right"))).to_be_visible()
    expect(
        page.locator(".st-key-block_what-we-understood_open").get_by_test_id("stImage").locator("img")
    ).to_have_count(4)
    expect(page.get_by_text("1 file that cannot be used left out: 0/broken.png")).to_be_visible()
    run_to_results(page)
    expect(page.get_by_role("heading", name="colleague.pth · fewer bits")).to_be_visible()
    levels = {layer["layer"]: layer["level"] for layer in downloaded_schedule(page, tmp_path)["layers"]}
    assert {"conv1.0", "layer1.0.conv1", "fc"} <= set(levels)


class Harmful:
    """Unpickling this would make a folder."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.mkdir, (str(self.trace),)


def the_sample_shows_what_images_look_like(page: Page, tmp_path: Path) -> None:
    open_block(page, "Images")
    page.get_by_text("Upload images", exact=True).click()
    with page.expect_download() as download:
        page.get_by_role("button", name="Download a sample zip").click()
    download.value.save_as(tmp_path / "sample.zip")
    with zipfile.ZipFile(tmp_path / "sample.zip") as sample:
        assert len(sample.namelist()) == 897
        assert {name.split("/")[0] for name in sample.namelist()} == set("0123456789")


@pytest.mark.wide
def test_a_harmful_file_gets_its_sentence_and_is_gone_and_a_sample_shows_what_is_wanted(
    page: Page, server: Server, tmp_path: Path
) -> None:
    path = tmp_path / "harmful.pth"
    torch.save({"state_dict": Harmful(tmp_path / TRACE)}, path)
    offer_checkpoint(page, path)
    expect(page.get_by_role("alert").filter(has_text="posix.mkdir")).to_be_visible()
    expect(page.get_by_role("button", name="Run", exact=True)).to_be_disabled()
    uploads = server.home / "uploads"
    assert [file.name for file in uploads.rglob(path.name)] == []
    assert not (tmp_path / TRACE).exists()
    the_sample_shows_what_images_look_like(page, tmp_path)


@pytest.mark.wide
def test_the_list_of_networks_follows_the_keys(page: Page) -> None:
    open_block(page, "Model")
    page.get_by_text("Library", exact=True).click()
    expect(page.get_by_role("button", name="Run", exact=True)).to_be_disabled()
    a_slow_computer = page.context.new_cdp_session(page)  # letters were lost on one
    a_slow_computer.send("Emulation.setCPUThrottlingRate", {"rate": 4})
    page.get_by_role("searchbox", name="Search").press_sequentially("mobilenetv3_large_07", delay=25)  # no Enter
    expect(page.get_by_role("radiogroup", name="Found 2 networks")).to_be_visible()  # until then the list moves
    expect(page.get_by_role("searchbox", name="Search")).to_have_value("mobilenetv3_large_07")
    a_slow_computer.send("Emulation.setCPUThrottlingRate", {"rate": 1})
    page.get_by_text("timm/mobilenetv3_large_075").click()
    expect(page.get_by_text("Chosen: timm/mobilenetv3_large_075")).to_be_visible()
    expect(page.get_by_test_id("stMarkdown").get_by_text("3.99 M", exact=True)).to_be_visible()
    expect(page.get_by_text("The weights are random")).to_be_visible()


@pytest.mark.wide
def test_a_class_is_chosen_by_its_name(page: Page, tmp_path: Path) -> None:
    torch.save(timm.create_model("test_resnet").state_dict(), tmp_path / "imagenet.pth")
    offer_checkpoint(page, tmp_path / "imagenet.pth")
    expect(page.get_by_text("Recognised as timm/test_resnet")).to_be_visible()
    offer_images(page, write_zip(tmp_path / "photos.zip", {"cat/1.png": png(1), "goldfish/1.png": png(2)}))
    expect(page.get_by_text("1 of 2 matched, by the model's class names")).to_be_visible()
    expect(page.get_by_text("Left out, as no class is given for them: cat.")).to_be_visible()
    row_pixels, class_column = 35, 0.7
    grid = page.get_by_test_id("stDataFrame")
    place = grid.bounding_box()
    assert place is not None
    grid.dblclick(position={"x": class_column * place["width"], "y": 1.5 * row_pixels})
    page.locator("#portal input").fill("tabby")
    expect(page.get_by_text("281 · tabby, tabby cat", exact=True)).to_be_visible()
    page.keyboard.press("Enter")
    expect(page.get_by_text("Left out, as no class is given for them: cat.")).to_be_hidden()
    expect(page.get_by_text(re.compile("the model gets .* of 2 images right"))).to_be_visible()
