"""Look for known vulnerabilities in the packages of ``constraints.txt``.

``python -m scripts.audit`` exits with 1 if there are some. Where no advisory service can be reached, it says so in one
sentence and exits with 0: a missing network must not stop a change.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from scripts.peer_environment import PeerFailed, ensure

_CONSTRAINTS = Path(__file__).resolve().parent.parent / "constraints.txt"
_KNOWN_BAD = "urllib3==1.24.1\n"
"""A package with published advisories: an answer without them is no answer."""
_SECONDS = 300


def findings(report: dict[str, Any]) -> list[str]:
    """Return one line per vulnerability in what pip-audit wrote as JSON."""
    return [
        f"{package['name']} {package['version']}: {found['id']}, fixed in "
        f"{', '.join(found['fix_versions']) or 'no version'}"
        for package in report["dependencies"]
        for found in package.get("vulns", ())
    ]


def audit(python: Path, requirements: Path) -> list[str] | None:
    """Return the vulnerabilities of the pinned ``requirements``, or None where they cannot be looked up."""
    command = [str(python), "-m", "pip_audit", "--format=json", "--no-deps", "--disable-pip", "--progress-spinner=off"]
    try:
        done = subprocess.run(
            [*command, "--requirement", str(requirements)],
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=False,
        )
        return findings(json.loads(done.stdout))
    except (subprocess.TimeoutExpired, ValueError, KeyError):
        return None


def main() -> int:
    """Audit, and return the exit code."""
    try:
        python = ensure("pip-audit")
    except PeerFailed as error:
        print(f"Nothing was audited: pip-audit cannot be installed here ({str(error).splitlines()[0]})")
        return 0
    with tempfile.TemporaryDirectory() as folder:
        probe = Path(folder) / "probe.txt"
        probe.write_text(_KNOWN_BAD)
        found = audit(python, _CONSTRAINTS) if audit(python, probe) else None
    if found is None:
        print("Nothing was audited: no advisory service can be reached from here.")
        return 0
    print("\n".join(found) if found else "No package has a known vulnerability.")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
