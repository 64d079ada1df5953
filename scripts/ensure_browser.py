"""Make sure that there is a Chrome or Chromium for the browser tests, and print its path.

An installed one is taken first; else, as root on Debian, its ``chromium`` package is installed; else one sentence
says what to install and the exit status is 1. Only the standard library is used.
"""

import os
import shutil
import subprocess
import sys

COMMANDS = ("google-chrome", "google-chrome-stable", "chromium", "chromium-browser")


def find_browser() -> str | None:
    """Return the path of the first installed browser that starts, or None."""
    paths = (shutil.which(command) for command in COMMANDS)
    return next((path for path in paths if path and _starts(path)), None)


def _starts(path: str) -> bool:
    """Tell whether it answers with its version; Ubuntu's ``chromium-browser`` may be a stub that asks for snap."""
    try:
        return subprocess.run([path, "--version"], capture_output=True, timeout=60, check=False).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def install_browser() -> None:
    """Install Debian's ``chromium``; what apt-get says is shown only when it fails."""
    print("No Chrome or Chromium found: installing Debian's chromium package", flush=True)
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    for command in (["update"], ["install", "--yes", "--no-install-recommends", "chromium"]):
        apt = ["apt-get", "--quiet", *command]
        done = subprocess.run(apt, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        if done.returncode:
            print(done.stdout, done.stderr, sep="\n", file=sys.stderr)
            return


def main() -> None:
    """Find or install a browser."""
    browser = find_browser()
    if browser is None and os.geteuid() == 0 and shutil.which("apt-get"):
        install_browser()
        browser = find_browser()
    if browser is None:
        sys.exit(
            "The browser tests need Chrome or Chromium, and none was found: install google-chrome or chromium "
            "and run the tests again."
        )
    print(f"Browser tests use {browser}")


if __name__ == "__main__":
    main()
