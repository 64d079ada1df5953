"""The wheel, installed where nothing of the clone is in reach: the app, its pages, the demo, the command line."""

import json
import re
import shutil
import subprocess
import sys
import tomllib
import urllib.request
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from scripts.peer_environment import install, make_environment
from soak.visitor import Visitor
from tests.asynchronous import run_async
from tests.browser.servers import Server, serving

ROOT = Path(__file__).parents[2]
BUILT_FROM = [
    *("setup.py", "pyproject.toml", "MANIFEST.in", "README.md", "app.py", "pages", "assets", ".streamlit"),
    *("senseapp",),
]
DEMO_LAYERS = 23
PAGES = ("results", "schedule", "compare", "runs", "guide", "system")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from a copy: a build leaves files beside what it reads."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for name in BUILT_FROM:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy2(ROOT / name, source)
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", str(out)]
    subprocess.run([*build, str(source)], check=True)
    (made,) = out.glob("*.whl")
    return made


@pytest.fixture(scope="module")
def command(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The console command of an environment with the wheel; it shares this one's libraries."""
    place = tmp_path_factory.mktemp("installed")
    make_environment(place)
    install(place / "bin" / "python", str(wheel))
    return place / "bin" / "senseapp"


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Another working folder, and nothing that leads back to the clone."""
    monkeypatch.delenv("PYTHONPATH", raising=False)
    monkeypatch.setenv("SENSEAPP_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def told(*command: object) -> str:
    return subprocess.run([str(word) for word in command], capture_output=True, text=True, check=True).stdout


def requirements() -> dict[str, Requirement]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return {found.name.lower(): found for found in map(Requirement, project["dependencies"])}


def test_each_pin_of_the_app_lies_in_the_range_of_the_package() -> None:
    lines = re.findall(r"^[^#\s][^#\n]*", (ROOT / "requirements.txt").read_text(), re.MULTILINE)
    pins = {pin.name.lower(): pin for pin in map(Requirement, lines)}
    assert pins.keys() == requirements().keys()
    for name, wanted in requirements().items():
        (exact,) = pins[name].specifier
        assert exact.operator == "=="
        assert exact.version in wanted.specifier, f"{pins[name]} is not in {wanted}"
        assert sorted(part.operator for part in wanted.specifier) == ["<", ">="], wanted


@pytest.mark.wide
@pytest.mark.slow
def test_the_wheel_holds_the_app_and_no_tests(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    here = [ROOT / "app.py", ROOT / ".streamlit/config.toml", *(ROOT / "pages").glob("*.py")]
    here += [path for path in (ROOT / "assets").rglob("*") if path.is_file()]
    assert {f"senseapp/site/{path.relative_to(ROOT)}" for path in here} <= names
    assert {name.split("/")[0].split("-")[0] for name in names} == {"senseapp"}
    data = (path for path in (ROOT / "senseapp").rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    assert {str(path.relative_to(ROOT)) for path in data} <= names


@pytest.mark.wide
@pytest.mark.slow
def test_the_commands_answer_from_another_folder(command: Path, elsewhere: Path) -> None:
    origin = told(command.parent / "python", "-c", "import senseapp; print(senseapp.__file__)")
    assert Path(origin.strip()).is_relative_to(command.parents[1])
    assert "\n  senseapp serve --port" in told(command, "serve", "--help")
    assert "usage: python -m senseapp " in told(command.parent / "python", "-m", "senseapp", "--help")


@pytest.mark.wide
@pytest.mark.slow
def test_the_demo_is_measured_from_another_folder(command: Path, elsewhere: Path) -> None:
    demo = [
        *("--model", "demo", "--data", "demo", "--samples", "64", "--compression", "sparsity", "--levels", "50"),
        *("--mode", "quick"),
    ]
    told(command, "analyze", *demo, "--out", "run")
    assert len(json.loads((elsewhere / "run" / "targets.json").read_text())) > 0
    assert len((elsewhere / "run" / "sensitivity.csv").read_text().splitlines()) > DEMO_LAYERS


@pytest.mark.wide
@pytest.mark.slow
def test_every_page_is_served_from_another_folder(command: Path, elsewhere: Path) -> None:
    app = Server(elsewhere, command=(str(command), "serve"), port_option="--port", cwd=elsewhere)
    with serving(app):
        with urllib.request.urlopen(app.url, timeout=20) as answer:
            assert answer.status == 200
        run_async(looks_at_every_page(app.url))
        log = app.log.read_text()
        assert '"level": "error"' not in log, log
        assert "Traceback" not in log, log


async def looks_at_every_page(url: str) -> None:
    async with Visitor(url) as visitor:
        assert "What we understood" in visitor.text()
        await visitor.wait_until(lambda page: " layers × " in page.text(), seconds=120.0)  # the demo has been read
        for page in PAGES:
            await visitor.go(page)
            assert visitor.page == page
            assert visitor.elements()
