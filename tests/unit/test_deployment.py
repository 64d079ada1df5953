"""What the container would hold is enough to serve, and what the notes for servers say is so."""

import ast
import re
import tomllib
from pathlib import Path

import pytest
import yaml

from senseapp.app.server.guards import frame_ancestors

ROOT = Path(__file__).parents[2]
DOCKERFILE = (ROOT / "Dockerfile").read_text()


def copied() -> list[str]:
    """Return what the Dockerfile copies, but for its targets."""
    lines = re.findall(r"^COPY (.+)$", DOCKERFILE, re.MULTILINE)
    return [name for line in lines for name in line.split()[:-1]]


def test_everything_that_is_copied_is_there_and_not_ignored() -> None:
    let_in = {line[1:] for line in (ROOT / ".dockerignore").read_text().split() if line.startswith("!")}
    assert set(copied()) == let_in
    assert all((ROOT / name).exists() for name in copied())


@pytest.mark.wide
def test_what_is_copied_imports_nothing_of_ours_that_is_not() -> None:
    ours = {path.stem for path in ROOT.iterdir() if path.suffix == ".py" or path.is_dir()}
    code = [path for name in copied() for path in ((ROOT / name).rglob("*.py") if (ROOT / name).is_dir() else ())]
    used: set[str] = set()
    for path in (*code, ROOT / "app.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom):
                used.add((node.module or "").split(".")[0])
            elif isinstance(node, ast.Import):
                used |= {name.name.split(".")[0] for name in node.names}
    assert {"senseapp", "tests", "scripts"} <= ours
    assert used & ours == {"senseapp"}


def test_the_container_runs_without_rights_and_is_asked_how_it_is() -> None:
    assert re.search(r"^USER senseapp$", DOCKERFILE, re.MULTILINE)
    assert DOCKERFILE.index("RUN pip") < DOCKERFILE.index("USER senseapp") < DOCKERFILE.index("\nCMD")
    assert "HEALTHCHECK" in DOCKERFILE
    assert "VOLUME /var/lib/senseapp" in DOCKERFILE
    service = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]["senseapp"]
    assert service["ports"] == ["127.0.0.1:8501:8501"]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["volumes"] == ["senseapp:/var/lib/senseapp"]


def test_streamlits_settings_are_those_of_a_server() -> None:
    settings = tomllib.loads((ROOT / ".streamlit" / "config.toml").read_text())
    assert settings["server"]["fileWatcherType"] == "none"
    assert settings["server"]["enableXsrfProtection"] is True
    assert settings["server"]["enableStaticServing"] is False
    assert settings["client"] == {"toolbarMode": "viewer", "showErrorDetails": "none"}
    assert settings["browser"]["gatherUsageStats"] is False


def test_the_files_that_the_threat_model_names_exist() -> None:
    table = (ROOT / "SECURITY.md").read_text().split("## Where to look")[1]
    for cell in re.findall(r"^\|[^|]+\|([^|]+)\|([^|]+)\|$", table, re.MULTILINE)[2:]:
        for column in cell:
            folder = ""
            for name in re.findall(r"`([^`]+)`", column):
                folder = name.rsplit("/", 1)[0] if "/" in name else folder
                assert (ROOT / (name if "/" in name else f"{folder}/{name}")).exists(), name


SPACE = ROOT / "deploy" / "space"


def test_a_space_is_served_as_its_header_says_by_user_1000() -> None:
    _, header, _ = (SPACE / "README.md").read_text().split("---\n", 2)
    told = yaml.safe_load(header)
    dockerfile = (SPACE / "Dockerfile").read_text()
    assert told["sdk"] == "docker"
    assert f"EXPOSE {told['app_port']}\n" in dockerfile
    assert f"--port {told['app_port']} --host 0.0.0.0" in dockerfile
    assert dockerfile.index("--uid 1000 user") < dockerfile.index("\nUSER user\n") < dockerfile.index("RUN pip")
    assert len(told["short_description"]) <= 60  # the most that the site takes


def test_the_space_allows_frames_of_its_site_only(monkeypatch: pytest.MonkeyPatch) -> None:
    (given,) = re.findall(r'SENSEAPP_FRAME_ANCESTORS="([^"]+)"', (SPACE / "Dockerfile").read_text())
    monkeypatch.setenv("SENSEAPP_FRAME_ANCESTORS", given)
    assert all(origin.endswith(("huggingface.co", ".hf.space")) for origin in frame_ancestors())
