"""Addresses of downloads: random, bound to a browser and a person, streamed from the disk, gone after a while."""

from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from streamlit.runtime import media_file_manager
from streamlit.runtime.media_file_storage import MediaFileStorageError
from streamlit.runtime.memory_media_file_storage import MemoryMediaFileStorage
from streamlit.web.server.starlette.starlette_app_utils import generate_xsrf_token_string

from senseapp.app import logins
from senseapp.app.common.download import Download
from senseapp.app.server.downloads import DownloadRegistry, Downloads
from senseapp.compat import streamlit_internals
from senseapp.core.errors import NotFound
from senseapp.records.spec import RunSpec
from senseapp.server.settings import LOCAL_OWNER
from senseapp.store.run_store import RunStore
from tests.asynchronous import run_async

MB = 1_000_000
ANN, BOB = b"ann's browser 16", b"bob's browser 16"


class Server:
    def __init__(self) -> None:
        self.open = {"ann", "bob"}
        self.seconds = 0.0
        self.registry = DownloadRegistry(lambda session: session in self.open, lambda: self.seconds)
        self.app = Starlette(middleware=[Middleware(Downloads, registry=self.registry)])

    def offer(
        self,
        make: Callable[[], str | bytes | Path],
        *,
        name: str = "compressed.safetensors",
        owner: str = LOCAL_OWNER,
        is_temporary: bool = False,
    ) -> str:
        asked = Download(make=make, is_temporary=is_temporary, session="ann", browser=ANN, owner=owner)
        return self.registry.deliver(asked, name, "")

    def get(self, url: str, browser: bytes = ANN, *, method: str = "GET", **headers: str) -> httpx.Response:
        cookies = {"_streamlit_xsrf": generate_xsrf_token_string(browser)} if browser else {}

        async def ask() -> httpx.Response:
            transport = httpx.ASGITransport(self.app)
            async with httpx.AsyncClient(transport=transport, base_url="http://test", cookies=cookies) as client:
                return await client.request(method, url, headers={"Accept-Encoding": "gzip"} | headers)

        return run_async(ask())


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Server:
    monkeypatch.setenv("SENSEAPP_HOME", str(tmp_path))
    return Server()


def test_equal_names_lengths_and_ends_are_told_apart(server: Server, tmp_path: Path) -> None:
    ends = b"head" * MB, b"tail" * MB
    contents = [ends[0] + middle + ends[1] for middle in (b"one", b"two")]
    urls = []
    for number, content in enumerate(contents):
        path = tmp_path / f"{number}.safetensors"
        path.write_bytes(content)
        urls.append(server.offer(lambda path=path: path))  # type: ignore[misc]
    assert [server.get(url).content for url in urls] == contents
    assert len({server.offer(lambda: "same") for _ in range(20)}) == 20


def test_a_file_comes_with_its_name_length_and_parts(server: Server) -> None:
    url = server.offer(lambda: b"0123456789", name='größe "1".csv')
    whole, part, head = server.get(url), server.get(url, Range="bytes=2-4"), server.get(url, method="HEAD")
    assert (whole.content, part.content, head.content) == (b"0123456789", b"234", b"")
    assert whole.headers["Content-Length"] == head.headers["Content-Length"] == "10"
    assert whole.headers["Content-Disposition"] == "attachment; filename*=utf-8''gr%C3%B6%C3%9Fe%20%221%22.csv"
    assert whole.headers["Content-Type"].startswith("text/csv")
    assert whole.headers["Cache-Control"] == "no-store"
    assert "Content-Encoding" not in whole.headers
    assert server.get(url, method="POST").status_code == 405


def test_only_the_browser_that_asked_gets_it(server: Server) -> None:
    url = server.offer(lambda: "secret")
    assert server.get(url).text == "secret"
    assert [server.get(url, browser).status_code for browser in (BOB, b"")] == [404, 404]
    assert server.get(url[:-1] + ("a" if url[-1] != "a" else "b")).status_code == 404
    nameless = Download(make=lambda: "x", is_temporary=False, session="ann", browser=b"", owner=LOCAL_OWNER)
    url = server.registry.deliver(nameless, "x", "")
    assert server.get(url, b"").status_code == 404


def test_with_login_only_the_person_who_asked_gets_it(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    url = server.offer(lambda: "secret", owner="https://login|ann")
    claims = {"is_logged_in": True, "iss": "https://login", "sub": "bob"}
    assert server.get(url).status_code == 404
    monkeypatch.setattr(logins, "login_claims", lambda cookies: claims)
    assert server.get(url).status_code == 404
    claims["sub"] = "ann"
    assert server.get(url).text == "secret"


def test_it_is_gone_after_the_page_and_after_a_while(server: Server, tmp_path: Path) -> None:
    url = server.offer(lambda: "secret")
    server.open.remove("ann")
    assert server.get(url).status_code == 404
    server.open.add("ann")
    assert server.get(url).status_code == 200
    server.seconds = 601
    assert server.get(url).status_code == 404
    server.registry.sweep()
    assert not list((tmp_path / "tmp").iterdir())


def test_it_is_gone_once_the_link_of_its_run_is_taken_back(server: Server, tmp_path: Path) -> None:
    store = RunStore(tmp_path / "home")
    run_id = store.create(RunSpec(), owner="ann").run_id
    link = store.share(run_id, "ann", shared=True)
    offered = Download(
        make=lambda: "secret",
        is_temporary=False,
        session="ann",
        browser=ANN,
        owner=LOCAL_OWNER,
        check=lambda: store.get(link, "somebody"),
    )
    url = server.registry.deliver(offered, "x", "")
    assert server.get(url).text == "secret"
    store.share(run_id, "ann", shared=False)
    assert server.get(url).status_code == 404
    with pytest.raises(NotFound):
        server.registry.deliver(offered, "x", "")
    store.share(run_id, "ann", shared=True)
    assert server.get(url).status_code == 404  # the new link is another one
    store.close()


def test_the_files_of_a_page_do_not_pile_up(server: Server, tmp_path: Path) -> None:
    urls = [server.offer(lambda: b"x") for _ in range(40)]
    assert [server.get(url).status_code for url in urls] == [404] * 8 + [200] * 32
    assert len(list((tmp_path / "tmp").iterdir())) == 32
    server.registry.close()
    assert not list((tmp_path / "tmp").iterdir())


def test_a_model_stays_where_it_is_and_goes_with_its_run(server: Server, tmp_path: Path) -> None:
    model = tmp_path / "model.safetensors"
    model.write_bytes(b"weights")
    url = server.offer(lambda: model)
    assert server.get(url).content == b"weights"
    server.registry.close()
    assert model.is_file()
    url = server.offer(lambda: model)
    model.unlink()
    assert server.get(url).status_code == 404


def test_what_cannot_be_made_has_no_address(server: Server) -> None:
    def gone() -> bytes:
        raise NotFound("There is no such run.")

    with pytest.raises(NotFound):
        server.offer(gone)
    with pytest.raises(TypeError):
        server.registry.deliver(lambda: b"", "file", "")


def test_a_click_on_a_button_that_a_new_run_has_replaced_still_downloads(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds, sessions = [0.0], {"ann"}
    monkeypatch.setattr(streamlit_internals.time, "monotonic", lambda: seconds[0])
    monkeypatch.setattr(streamlit_internals, "is_session", sessions.__contains__)
    monkeypatch.setattr(media_file_manager, "_get_session_id", lambda: "ann")
    files = streamlit_internals._Downloads(
        MemoryMediaFileStorage("/media"), lambda make, name, mime: f"{name} {make()}"
    )

    def run(content: str) -> str:
        """Run a page with one button to its end; return the id of what the button offers."""
        files.clear_session_refs("ann")
        offered = files.add_deferred(lambda: content, "text/plain", "0.1", "a.txt")
        files.remove_orphaned_files()
        return offered

    old, new = run("old"), run("new")
    assert (files.execute_deferred(old), files.execute_deferred(new)) == ("a.txt old", "a.txt new")

    seconds[0] = 61.0
    last = run("last")
    assert (files.execute_deferred(new), files.execute_deferred(last)) == ("a.txt new", "a.txt last")
    with pytest.raises(MediaFileStorageError):
        files.execute_deferred(old)

    sessions.clear()
    files.clear_session_refs("ann")
    files.remove_orphaned_files()
    for ended in (new, last):
        with pytest.raises(MediaFileStorageError):
            files.execute_deferred(ended)
