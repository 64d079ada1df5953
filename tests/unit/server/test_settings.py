import dataclasses
import re
from pathlib import Path

import pytest

from senseapp.core.errors import InvalidSpec, QuotaExceeded
from senseapp.server.service import Service
from senseapp.server.settings import ServerSettings, whole_number
from tests.fake_session import SPEC, a_backend

ROOT = Path(__file__).parents[3]
MEGABYTE = 1_000_000


def a_service(home, owner="ann", **settings):
    return Service(a_backend(home, settings=ServerSettings(**settings)), owner)


def fatten(service, num_bytes):
    """Give the newest run of ``service`` a large compressed model."""
    store, run_id = service._backend.store, service.runs()[0].run_id
    store.folder(run_id).compressed_model("f" * 16).write_bytes(bytes(num_bytes))
    store.update_size(run_id)


def test_every_setting_in_the_code_is_in_the_documents():
    code = "\n".join(path.read_text() for path in (ROOT / "senseapp").rglob("*.py"))
    documents = (ROOT / "docs" / "deploy.md").read_text()
    named = set(re.findall(r'"(SENSEAPP_[A-Z_]+)"', code))
    assert len(named) > 8
    assert not {name for name in named if f"`{name}`" not in documents}


def test_settings_come_from_the_environment(monkeypatch):
    for name in ("WORKERS", "PER_PERSON_MB", "RUNS_IN_ALL_MB", "MAX_UPLOAD_MB", "UPLOADS_IN_ALL_MB", "KEEP_RUNS_DAYS"):
        monkeypatch.delenv(f"SENSEAPP_{name}", raising=False)
    assert ServerSettings.configured() == ServerSettings()
    values = {
        "WORKERS": 2,
        "PER_PERSON_MB": 4,
        "RUNS_IN_ALL_MB": 5,
        "MAX_UPLOAD_MB": 6,
        "UPLOADS_IN_ALL_MB": 7,
        "KEEP_RUNS_DAYS": 8,
    }
    for name, value in (values | {"RUNS_PER_MINUTE": 3}).items():
        monkeypatch.setenv(f"SENSEAPP_{name}", f" {value} ")
    found = ServerSettings.configured()
    assert dataclasses.astuple(found)[:8] == (2, 1, 20, 4, 5, 6, 7, 8)
    assert found.runs_per_minute == 3


@pytest.mark.parametrize("text", ["0", "-1", "2.5", "many", "1e3", "٣x"])
def test_a_setting_that_makes_no_sense_is_named(monkeypatch, text):
    monkeypatch.setenv("SENSEAPP_WORKERS", text)
    with pytest.raises(InvalidSpec, match="SENSEAPP_WORKERS must be a whole number above 0"):
        ServerSettings.configured()


def test_zero_is_a_number_where_it_means_something(monkeypatch):
    monkeypatch.setenv("SENSEAPP_KEEP_RUNS_DAYS", "0")
    assert whole_number("SENSEAPP_KEEP_RUNS_DAYS", 5, unit="days", least=0) == 0


def test_one_persons_quota_stops_new_runs_until_something_is_deleted(tmp_path):
    service = a_service(tmp_path, person_mb=1)
    service.start(SPEC)
    fatten(service, MEGABYTE)
    for _ in range(2):
        with pytest.raises(QuotaExceeded, match="Delete some on the Runs page"):
            service.start(SPEC)
    assert len(service.runs()) == 1
    Service(service._backend, "bob").start(SPEC)
    service.delete(service.runs()[0].run_id)
    service.start(SPEC)


def test_everybodys_quota_stops_everybody(tmp_path):
    service = a_service(tmp_path, person_mb=5, server_mb=1)
    service.start(SPEC)
    fatten(service, MEGABYTE)
    with pytest.raises(QuotaExceeded, match="The runs on this server may take"):
        Service(service._backend, "bob").start(SPEC)
