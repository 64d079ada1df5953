"""One server at a time on one home."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from senseapp.core.errors import HomeInUse
from senseapp.core.files import lock_home, make_private
from senseapp.records.jobs import RunState
from senseapp.records.spec import RunSpec
from senseapp.server.backend import Backend, backend_at
from senseapp.server.service import Service
from soak.served import served
from soak.visitor import Visitor
from tests.asynchronous import run_async

HOLDER = "import sys, pathlib; from senseapp.core.files import lock_home; lock_home(pathlib.Path(sys.argv[1]))\n"
HOLDER += "print('held', flush=True); sys.stdin.read()"


@contextmanager
def other_server(home: Path) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-c", HOLDER, str(home)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        yield process
        process.kill()


@pytest.mark.slow
def test_the_second_says_who_holds_the_home_and_leaves_live_runs_alone(tmp_path: Path) -> None:
    first = Backend(tmp_path, workers=0, data_roots=())
    run_id = Service(first).start(RunSpec())
    first.store.set_state(run_id, RunState.RUNNING)
    with other_server(tmp_path) as server:
        with pytest.raises(HomeInUse) as refused:
            backend_at(tmp_path)
        assert re.search(rf"process {server.pid}, since \d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d UTC", str(refused.value))
        environment = os.environ | {"SENSEAPP_HOME": str(tmp_path)}
        command = [sys.executable, "-m", "senseapp.app.server.serve", "--server.port=1"]
        second = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert second.returncode == 1
        assert second.stderr.strip() == str(refused.value)
    assert first.store.record(run_id).state is RunState.RUNNING
    first.close()


@pytest.mark.wide
@pytest.mark.slow
def test_a_killed_server_leaves_the_home_to_the_next(tmp_path: Path) -> None:
    with other_server(tmp_path):
        pass
    lock_home(tmp_path)
    lock_home(tmp_path)  # once for each process is enough


@pytest.mark.wide
@pytest.mark.slow
def test_of_a_server_that_was_killed_only_whole_uploads_stay(tmp_path: Path) -> None:
    before = Backend(tmp_path, workers=0, data_roots=())
    ghosts = [Service(before).inputs.reserve_upload(announced_bytes=2_000_000_000) for _ in range(3)]
    whole, old = (Service(before).inputs.reserve_upload(10) for _ in range(2))
    whole, old = whole.rename(whole.with_name("mine.zip")), old.rename(old.with_name("old.zip"))
    os.utime(old, (1e9, 1e9))
    before.close()
    assert all(path.is_file() for path in (*ghosts, old))
    backend_at(tmp_path)
    assert not any(path.exists() for path in (*ghosts, old))
    assert whole.is_file()
    backend_at(tmp_path).close()


@pytest.mark.wide
@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs a folder that not even root can write to")
def test_a_server_of_a_home_that_cannot_be_used_says_so(tmp_path: Path) -> None:
    async def errors_of(url: str, page: str) -> list[str]:
        async with Visitor(url, page) as visitor:
            return [each.alert.body for each in visitor.elements() if each.WhichOneof("type") == "alert"]

    with served(tmp_path, SENSEAPP_HOME="/sys/senseapp") as server:
        for page in ("system", "runs"):
            assert any("its folder is writable" in each for each in run_async(errors_of(server.url, page)))


@pytest.mark.skipif(os.name != "posix", reason="folders have no such rights")
def test_nobody_else_may_look_into_a_home_also_one_made_before(tmp_path):
    new, old, shared = tmp_path / "a" / "new", tmp_path / "old", tmp_path / "shared"
    old.mkdir(mode=0o755)
    shared.mkdir()
    shared.chmod(0o1777)
    for folder in (new, old, shared):
        make_private(folder)
    assert [folder.stat().st_mode & 0o7777 for folder in (new, old, shared)] == [0o700, 0o700, 0o1777]
