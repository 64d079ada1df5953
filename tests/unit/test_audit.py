"""Looking for known vulnerabilities, with pip-audit's answers given."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from scripts import audit
from scripts.peer_environment import PeerFailed

HARMLESS = {"dependencies": [{"name": "a", "version": "1", "vulns": []}, {"name": "b", "skip_reason": "not found"}]}
HARMFUL = {"dependencies": [{"name": "a", "version": "1", "vulns": [{"id": "CVE-1", "fix_versions": ["2", "3"]}]}]}


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What pip-audit says of the package with known advisories, and of ours."""
    given: dict[str, Any] = {"probe": HARMFUL, "ours": HARMLESS}

    def run(command: list[str], **named: object) -> subprocess.CompletedProcess[str]:
        said = given["probe" if "probe" in command[-1] else "ours"]
        return subprocess.CompletedProcess(command, 0, stdout=said if isinstance(said, str) else json.dumps(said))

    monkeypatch.setattr(audit.subprocess, "run", run)
    monkeypatch.setattr(audit, "ensure", lambda name: Path("python"))
    return given


def test_sound_packages_pass(answers: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert audit.main() == 0
    assert capsys.readouterr().out == "No package has a known vulnerability.\n"


def test_a_vulnerable_package_fails_the_check(answers: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    answers["ours"] = HARMFUL
    assert audit.main() == 1
    assert capsys.readouterr().out == "a 1: CVE-1, fixed in 2, 3\n"


@pytest.mark.parametrize("silence", [HARMLESS, "", "Traceback: no network"])
def test_without_a_service_it_says_so_and_passes(
    answers: dict[str, Any], capsys: pytest.CaptureFixture[str], silence: Any
) -> None:
    answers["probe"] = silence
    answers["ours"] = HARMFUL  # never asked for
    assert audit.main() == 0
    assert capsys.readouterr().out == "Nothing was audited: no advisory service can be reached from here.\n"


def test_without_pip_audit_it_says_so_and_passes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(name: str) -> Path:
        raise PeerFailed("pip could not install pip-audit.txt:\nlong story")

    monkeypatch.setattr(audit, "ensure", fail)
    assert audit.main() == 0
    assert capsys.readouterr().out.startswith("Nothing was audited: pip-audit cannot be installed here")
