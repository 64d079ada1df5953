"""Two files checked against each other in a browser: from the uploads to the verdict and what is taken away."""

from __future__ import annotations

import re
from io import BytesIO
from pathlib import Path
from zipfile import ZipFile

import onnx
import pytest
from playwright.sync_api import Page, expect

from senseapp.server.image_report import sample_zip
from tests.browser.steps import uploader
from tests.browser.waiting import at_rest
from tests.check_pairs import PAIRS, Workshop
from tests.pictures import write_zip

pytestmark = pytest.mark.browser

CHECK_MILLISECONDS = 240_000


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    """A network that reads digits, the same with its classes reversed, and labelled digits."""
    shop = Workshop(tmp_path_factory.mktemp("files"))
    made = next(each for each in PAIRS if each.name == "classes reversed").make(shop)
    assert isinstance(made, onnx.ModelProto)
    onnx.save(made, shop.folder / "reversed.onnx")
    with ZipFile(BytesIO(sample_zip())) as digits:
        write_zip(shop.folder / "digits.zip", {name: digits.read(name) for name in digits.namelist()[::3]})
    return shop.reference, shop.folder / "reversed.onnx", shop.folder / "digits.zip"


@pytest.mark.wide
def test_a_broken_candidate_fails_with_its_cause(page: Page, files: tuple[Path, Path, Path], tmp_path: Path) -> None:
    page.get_by_role("link", name="Check a file").click()
    expect(page.get_by_role("heading", name="Check a file")).to_be_visible()
    expect(page.get_by_role("button", name="Check", exact=True)).to_be_disabled()
    for side, path in zip(("reference", "candidate"), files, strict=False):
        at_rest(page)
        page.locator(f".st-key-analyze-{side}-file-0 input[type=file]").set_input_files(path)
        expect(page.get_by_text(path.name, exact=True)).to_be_visible()
    at_rest(page)
    page.get_by_text("Upload images", exact=True).click()
    uploader(page, "Images").locator("input[type=file]").set_input_files(files[2])
    expect(page.get_by_text(re.compile("299 images · 10 classes"))).to_be_visible()
    expect(page.get_by_role("button", name="Check", exact=True)).to_be_enabled()
    page.get_by_role("button", name="Check", exact=True).click()
    expect(page).to_have_url(re.compile(r"/check\?check=[0-9a-f]{32}"))
    verdict = page.get_by_role("alert").filter(has_text="Fails: Loss of right answers")
    expect(verdict).to_be_visible(timeout=CHECK_MILLISECONDS)
    expect(page.get_by_text("Its classes probably come in another order")).to_have_count(2)
    with page.expect_download() as download:
        page.get_by_role("button", name="Page (HTML)").click()
    download.value.save_as(tmp_path / "check.html")
    assert "reversed.onnx against reference.onnx" in (tmp_path / "check.html").read_text("utf-8")
    page.get_by_role("button", name="Check other files").click()
    expect(page.get_by_text("Earlier checks")).to_be_visible()
