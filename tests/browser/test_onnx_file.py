"""An ONNX file of somebody's own, from the upload to the results, in a browser."""

from __future__ import annotations

import re
from pathlib import Path

import onnx
import pytest
import torch
from playwright.sync_api import Locator, Page, expect
from torch import Tensor, nn

from tests.browser.steps import (
    AMOUNTS,
    RUN_MILLISECONDS,
    make_schedule,
    offer_graph,
    offer_images,
    open_part,
    run_to_results,
    verify,
)
from tests.browser.waiting import at_rest
from tests.onnx_files import exported, with_half, write_export
from tests.onnx_graphs import file_of, node, weights
from tests.pictures import png, write_zip
from tests.small_models import NUM_CLASSES, small_network

pytestmark = pytest.mark.browser


def outputs(page: Page) -> Locator:
    return page.get_by_test_id("stSelectbox").filter(has_text="Output to measure")


@pytest.mark.wide
def test_a_file_is_measured_on_the_chosen_output(page: Page, tmp_path: Path) -> None:
    path = tmp_path / "colleague.onnx"
    path.write_bytes(with_half(exported(small_network(seed=0)), NUM_CLASSES))
    pictures = {f"{name}/{i}.png": png(10 * place + i) for place, name in enumerate("012345") for i in range(3)}
    offer_graph(page, path)
    expect(page.get_by_text("1 × 3 × 16 × 16, any number of images")).to_be_visible()
    expect(outputs(page).locator("input")).to_have_value("scores · 1 × 6")
    at_rest(page)
    outputs(page).locator("input").click()
    page.get_by_role("option", name="half · 1 × 6").click()
    expect(
        page.get_by_text("Read from the file: input images 1 × 3 × 16 × 16, any number of images · output half")
    ).to_be_visible()
    page.screenshot(path=tmp_path / "analyze.png", full_page=True)
    offer_images(page, write_zip(tmp_path / "photos.zip", pictures))
    expect(page.get_by_text("18 images · 6 classes · from class folders")).to_be_visible()
    page.get_by_role("button", name="Measure it like this all the same").click()  # it was never trained
    expect(page.get_by_text(re.compile("Uncompressed, the model gets .* of 18 images right"))).to_be_visible()
    at_rest(page)
    assert "model.outputs=%5B%22half%22%5D" in page.url
    run_to_results(page)
    expect(page.get_by_role("heading", name="colleague.onnx · fewer bits")).to_be_visible()


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
    page.get_by_text("Float", exact=True).click()
    at_rest(page)
    page.get_by_role("button", name=re.compile("^Make (the file|another)")).click()
    button = page.get_by_role("button", name=re.compile(r"^Get the .*ONNX"))
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


class YoloLike(nn.Module):
    """Boxes and classes of the cells of three strides, as YOLOv8 exports them: (N, 4 + 5, cells)."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(*(self._halving(width) for width in ((3, 8), (8, 12), (12, 16))))
        self.deeper = nn.ModuleList([self._halving((16, 16)), self._halving((16, 16))])
        self.heads = nn.ModuleList([nn.Conv2d(16, 9, 1) for _ in range(3)])

    @staticmethod
    def _halving(width: tuple[int, int]) -> nn.Sequential:
        return nn.Sequential(nn.Conv2d(*width, 3, stride=2, padding=1), nn.BatchNorm2d(width[1]), nn.SiLU())

    def forward(self, images: Tensor) -> Tensor:
        maps = [self.stem(images)]
        for halving in self.deeper:
            maps.append(halving(maps[-1]))
        rows = torch.cat([head(each).flatten(2) for head, each in zip(self.heads, maps, strict=True)], dim=2)
        return torch.cat([32 + 16 * rows[:, :4], (4 * rows[:, 4:]).sigmoid()], dim=1)


@pytest.mark.wide
def test_a_detector_is_measured_without_labels(page: Page, tmp_path: Path) -> None:
    torch.manual_seed(0)
    path = write_export(tmp_path / "detector.onnx", YoloLike().eval(), side=64)
    offer_graph(page, path)
    expect(page.get_by_text("1 × 3 × 64 × 64")).to_be_visible()
    page.get_by_role("combobox", name="What it does").click()
    page.get_by_role("option", name="Detection: boxes with a class").click()
    offer_images(page, write_zip(tmp_path / "photos.zip", {f"{i:02d}.png": png(i) for i in range(12)}))
    pictures = page.locator(".st-key-block_what-we-understood_open").get_by_test_id("stImage").locator("img")
    expect(pictures.first).to_be_visible()
    run_to_results(page)
    expect(page.get_by_role("heading", name="detector.onnx · fewer bits")).to_be_visible()


@pytest.mark.wide
def test_a_file_that_cannot_be_measured_gets_its_sentence(page: Page, tmp_path: Path) -> None:
    path = tmp_path / "int8.onnx"
    path.write_bytes(file_of([node("ConvInteger", "x w", "y", name="conv_quant")], {"w": weights(3, 3, 3, 3)}))
    offer_graph(page, path)
    sentence = page.get_by_role("alert").filter(has_text="conv_quant")
    expect(sentence).to_contain_text("Bring the float file that this one was quantized from.")
    expect(page.get_by_role("button", name="Run", exact=True)).to_be_disabled()
