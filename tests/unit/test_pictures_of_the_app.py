"""The pictures of the documents and the Guide are there, small, and can all be made again."""

import re
from pathlib import Path

from scripts.take_screenshots import FOLDER, MOST_BYTES, ROOT, SHOTS
from senseapp.app.guide import ENTRIES, PICTURES


def shown_in_documents() -> list[Path]:
    pages = (ROOT / "README.md", *(ROOT / "docs" / f"{name}.md" for name in ("index", "start", "gallery")))
    return [
        ROOT / path
        for page in pages
        for path in re.findall(r"\]\((?:\.\./)?(assets/[^)]+\.png)\)", page.read_text("utf-8"))
    ]


def test_every_picture_is_there_and_small() -> None:
    pictures = {*shown_in_documents(), *(PICTURES / f"{entry.picture}.png" for entry in ENTRIES)}
    assert len(pictures) >= len(SHOTS)
    for picture in pictures:
        assert picture.stat().st_size < MOST_BYTES


def test_the_documents_show_every_view_that_the_script_takes() -> None:
    assert {path.stem for path in shown_in_documents()} == set(SHOTS)
    assert PICTURES == FOLDER
    assert {path.stem for path in FOLDER.glob("*.png")} == set(SHOTS)
