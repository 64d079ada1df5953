"""Somebody's own weights, ONNX file and pictures, through the real engine."""

import json
import re
from pathlib import Path

import onnx
import pytest
import timm
import torch
from playwright.sync_api import Page, expect

from tests.browser.steps import (
    AMOUNTS,
    RUN_MILLISECONDS,
    make_schedule,
    offer_checkpoint,
    offer_graph,
    offer_images,
    open_block,
    open_part,
    run_to_results,
    verify,
)
from tests.browser.waiting import at_rest
from tests.onnx_files import exported
from tests.pictures import png, write_zip
from tests.small_models import small_network

pytestmark = pytest.mark.browser


@pytest.mark.wide
def test_a_strangers_checkpoint_and_class_folders_become_a_target_file(page: Page, tmp_path: Path) -> None:
    torch.manual_seed(0)
    network, weights = timm.create_model("test_resnet", num_classes=4), tmp_path / "colleague.pth"
    torch.save({"state_dict": network.state_dict(), "epoch": 3}, weights)  # without a word on its architecture
    pictures = {f"{name}/{i}.png": png(10 * place + i) for place, name in enumerate("0123") for i in range(3)}
    pictures["0/broken.png"] = b"not a picture"
    offer_checkpoint(page, weights)
    expect(page.get_by_text("Recognised as timm/test_resnet: every name and shape fits")).to_be_visible()
    expect(page.get_by_text("4 classes (the head is built for them")).to_be_visible()
    offer_images(page, write_zip(tmp_path / "photos.zip", pictures))
    expect(page.get_by_text("13 images · 4 classes · from class folders")).to_be_visible()
    expect(page.get_by_text("4 of 4 labels found in the model, by number")).to_be_visible()
    page.get_by_role("button", name="Measure it like this all the same").click()  # it was never trained
    expect(page.get_by_text(re.compile("Uncompressed, the model gets .* of 12 images right"))).to_be_visible()
    expect(
        page.locator(".st-key-block_what-we-understood_open").get_by_test_id("stImage").locator("img")
    ).to_have_count(4)
    expect(page.get_by_text("1 file that cannot be used left out: 0/broken.png")).to_be_visible()
    run_to_results(page)
    expect(page.get_by_role("heading", name="colleague.pth · photos.zip · fewer bits")).to_be_visible()
    make_schedule(page)
    open_part(page, "Target files")
    expect(page.get_by_text(AMOUNTS)).to_be_visible()
    with page.expect_download() as download:
        page.get_by_role("button", name="Download JSON").click()
    download.value.save_as(tmp_path / "schedule.json")
    layers = json.loads((tmp_path / "schedule.json").read_text())["layers"]
    assert {"conv1.0", "layer1.0.conv1", "fc"} <= {layer["layer"] for layer in layers}


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
    expect(page.get_by_text("1 of 2 labels found in the model, by the model's class names")).to_be_visible()
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


@pytest.mark.wide
def test_the_file_that_is_taken_away_is_the_uploaded_one_edited(page: Page, tmp_path: Path) -> None:
    path = tmp_path / "colleague.onnx"
    path.write_bytes(exported(small_network(seed=0)))
    pictures = {f"{i:02d}.png": png(i) for i in range(24)}
    offer_graph(page, path)
    expect(page.get_by_text("1 × 3 × 16 × 16, any number of images")).to_be_visible()
    offer_images(page, write_zip(tmp_path / "photos.zip", pictures))
    run_to_results(page)
    make_schedule(page)
    expect(page.get_by_text(AMOUNTS)).to_be_visible()
    verify(page)
    open_part(page, "File that runs")
    page.get_by_text("Full precision", exact=True).click()
    at_rest(page)
    page.get_by_role("button", name=re.compile("^Make (the file|another)")).click()
    button = page.get_by_role("button", name=re.compile(r"^Get the .*\.onnx"))
    expect(button.first).to_be_visible(timeout=RUN_MILLISECONDS)
    expect(page.get_by_text(re.compile(r"^.*The uploaded file with \d+ changed tensor")).first).to_be_visible()
    with page.expect_download() as download:
        button.first.click()
    file = tmp_path / "delivered.onnx"
    download.value.save_as(file)
    uploaded, delivered = onnx.load(path), onnx.load(file)
    onnx.checker.check_model(delivered, full_check=True)
    weights_of = [{each.name: each for each in model.graph.initializer} for model in (uploaded, delivered)]
    kept = weights_of[0].keys() & weights_of[1].keys()
    assert any(weights_of[0][name] != weights_of[1][name] for name in kept)
    for model in (uploaded, delivered):  # tensors that layers shared may be two now: only their names differ in nodes
        del model.graph.initializer[:]
        for each in model.graph.node:
            del each.input[1:]
    assert uploaded == delivered
