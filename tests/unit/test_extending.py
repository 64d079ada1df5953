"""Every package of docs/extending.md, installed as a user would, passes the test that stands beside it."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "extending.md").read_text("utf-8")
GROUPS = re.findall(r"^\| \[a .*? \| `(senseapp\.\w+)`", TEXT, re.MULTILINE)
BLOCK = re.compile(r'^```(?:(toml)|python title="([^"]+)")\n(.*?)^```$', re.MULTILINE | re.DOTALL)
INCLUDED = re.compile(r'^--8<-- "([^"]+)"$', re.MULTILINE)


@pytest.mark.wide
@pytest.mark.slow
def test_every_package_passes_its_own_test(tmp_path: Path) -> None:
    installed = tmp_path / "mine-1.0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n")
    lines, tests = [], []
    for toml, name, body in BLOCK.findall(TEXT):
        if toml:
            ((group, named),) = tomllib.loads(body)["project"]["entry-points"].items()
            lines += [f"[{group}]", *(f"{each} = {place}" for each, place in named.items())]
        elif name.startswith("test_"):
            tests.append(tmp_path / name)
            tests[-1].write_text(body)
        elif not name.startswith("tests/"):  # those are where they are said to be
            (tmp_path / name).write_text(INCLUDED.sub(lambda found: (ROOT / found[1]).read_text("utf-8"), body))
    (installed / "entry_points.txt").write_text("\n".join(lines) + "\n")
    assert sorted(line[1:-1] for line in lines if line.startswith("[")) == sorted(GROUPS)
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-c", os.devnull, "-p", "no:cacheprovider", *tests],
        env=os.environ | {"PYTHONPATH": f"{tmp_path}:{ROOT}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert f"{len(GROUPS)} passed" in ran.stdout
