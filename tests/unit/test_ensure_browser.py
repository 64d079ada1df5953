"""The script that finds or installs the browser of the browser tests; no real browser or package is touched."""

import pytest

from scripts import ensure_browser


@pytest.fixture
def commands(tmp_path, monkeypatch):
    """Return a function that puts a command with this exit status on an otherwise empty PATH."""
    monkeypatch.setenv("PATH", str(tmp_path))

    def add(name, status=0):
        path = tmp_path / name
        path.write_text(f"#!/bin/sh\nexit {status}\n")
        path.chmod(0o755)
        return str(path)

    return add


def test_chrome_comes_before_chromium(commands):
    commands("chromium")
    chrome = commands("google-chrome")
    assert ensure_browser.find_browser() == chrome


def test_a_stub_that_does_not_start_is_passed_over(commands):
    commands("google-chrome", status=1)
    chromium = commands("chromium-browser")
    assert ensure_browser.find_browser() == chromium


def test_only_root_with_apt_installs(commands, monkeypatch):
    monkeypatch.setattr(ensure_browser.os, "geteuid", lambda: 0)
    assert not ensure_browser.can_install()
    commands("apt-get")
    assert ensure_browser.can_install()
    monkeypatch.setattr(ensure_browser.os, "geteuid", lambda: 1000)
    assert not ensure_browser.can_install()


def test_what_was_just_installed_is_used(commands, monkeypatch, capsys):
    monkeypatch.setattr(ensure_browser, "can_install", lambda: True)
    monkeypatch.setattr(ensure_browser, "install_browser", lambda: commands("chromium"))
    assert ensure_browser.main() == 0
    assert "chromium" in capsys.readouterr().out


def test_one_sentence_says_what_to_install(commands, monkeypatch, capsys):
    monkeypatch.setattr(ensure_browser, "can_install", lambda: False)
    assert ensure_browser.main() == 1
    assert "install google-chrome or chromium" in capsys.readouterr().err


def test_a_failed_installation_shows_what_apt_said(commands, monkeypatch, tmp_path, capsys):
    (tmp_path / "apt-get").write_text("#!/bin/sh\necho 'no such mirror' >&2\nexit 100\n")
    (tmp_path / "apt-get").chmod(0o755)
    ensure_browser.install_browser()
    assert "no such mirror" in capsys.readouterr().err
