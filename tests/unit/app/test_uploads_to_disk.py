"""Uploads through Streamlit's own route, with our middleware around it."""

import asyncio
import time
import zipfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.applications import Starlette
from starlette.middleware import Middleware
from streamlit import config
from streamlit.runtime.memory_uploaded_file_manager import MemoryUploadedFileManager
from streamlit.web.server.starlette.starlette_routes import create_upload_routes

from senseapp.app import logins
from senseapp.app.uploads import to_disk
from senseapp.app.uploads.registry import UploadRegistry, zip_entries, zip_entry
from senseapp.app.uploads.to_disk import FormFile, UploadsToDisk
from senseapp.server.backend import Backend
from senseapp.server.service import Service
from senseapp.server.settings import ServerSettings
from tests.asynchronous import run_async
from tests.pictures import png

MB = 1_000_000
URL = "/_stcore/upload_file/session-1/file-1"
BOUNDARY = "x0123456789"
TYPE = {"Content-Type": f"multipart/form-data; boundary={BOUNDARY}"}


class Server:
    """Streamlit's upload route behind the middleware, with one person at home."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.seconds = 0.0
        self.registry = UploadRegistry(clock=lambda: self.seconds)
        self.in_memory = MemoryUploadedFileManager("/_stcore/upload_file")
        self.backend = Backend(home, workers=0, settings=ServerSettings(runs_per_minute=6))
        self.service = Service(self.backend)
        self.registry.expect("session-1", self.service)
        routes = create_upload_routes(self, self.in_memory, None)  # type: ignore[arg-type]
        self.app = Starlette(routes=routes, middleware=[Middleware(UploadsToDisk, registry=self.registry)])

    def is_active_session(self, session_id: str) -> bool:
        return session_id.startswith("session")

    def put(self, content: bytes | AsyncIterator[bytes], url: str = URL, headers: dict[str, str] = TYPE) -> int:
        return self.request("PUT", url, content=content, headers=headers).status_code

    def request(self, method: str, url: str, **options: object) -> httpx.Response:
        async def send() -> httpx.Response:
            transport = httpx.ASGITransport(self.app)
            async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
                return await client.request(method, url, **options)  # type: ignore[arg-type]

        return run_async(send())

    @property
    def files(self) -> list[Path]:
        return [path for path in (self.home / "uploads").rglob("*") if path.is_file()]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    config.set_option("server.enableXsrfProtection", False)
    made = Server(tmp_path / "home")
    yield made
    config.set_option("server.enableXsrfProtection", True)
    made.backend.close()


def form(content: bytes, name: str = "weights.pth", *, parts: int = 1) -> bytes:
    head = f'Content-Disposition: form-data; name="file"; filename="{name}"\r\nContent-Type: a/b\r\n\r\n'
    return (f"--{BOUNDARY}\r\n{head}".encode() + content + b"\r\n") * parts + f"--{BOUNDARY}--\r\n".encode()


async def in_pieces(body: bytes, size: int) -> AsyncIterator[bytes]:
    for start in range(0, len(body), size):
        yield body[start : start + size]


def noise(num_bytes: int) -> bytes:
    """Content with line ends and something like the boundary in it."""
    piece = f"\r\n--{BOUNDARY[:-1]}\r\n--\n".encode() + bytes(range(256))
    return (piece * (num_bytes // len(piece) + 1))[:num_bytes]


@pytest.mark.parametrize(("piece_bytes", "is_announced"), [(65_536, True), (1_000_003, True), (65_536, False)])
def test_a_large_file_lies_on_disk_and_not_in_memory(server: Server, piece_bytes: int, is_announced: bool) -> None:
    content = noise(9 * MB)
    body = form(content)
    announced = {"Content-Length": str(len(body))} if is_announced else {}
    assert server.put(in_pieces(body, piece_bytes), headers=TYPE | announced) == 204
    (record,) = server.in_memory.get_files("session-1", ["file-1"])
    assert (record.name, record.type, record.data) == ("weights.pth", "a/b", b"")
    upload = server.registry.take("session-1", "file-1")
    assert isinstance(upload, Path)
    assert upload.read_bytes() == content
    assert server.files == [upload]
    assert server.registry.take("session-1", "file-1") is None


def read_in_pieces(body: bytes, sizes: list[int]) -> tuple[bytes, bytes]:
    """Return the file and the form without it; pieces have ``sizes``, and one byte once these are used up."""
    reader, content, start = FormFile(TYPE["Content-Type"]), b"", 0
    while start < len(body):
        size = sizes.pop() if sizes else 1
        reader.read(body[start : start + size])
        content += reader.content()
        start += size
    return content, reader.without_content()


@settings(deadline=None)
@given(sizes=st.lists(st.integers(1, 400), max_size=20), num_bytes=st.integers(0, 700))
def test_a_form_reads_alike_however_the_network_cuts_it(sizes: list[int], num_bytes: int) -> None:
    assert read_in_pieces(form(noise(num_bytes), "größe.pth"), sizes) == (noise(num_bytes), form(b"", "größe.pth"))


@pytest.mark.slow
def test_small_files_need_a_field_and_count_against_rate_and_quota(server, monkeypatch) -> None:
    assert server.put(form(b"few"), url="/_stcore/upload_file/session-2/file-1") == 403
    monkeypatch.setenv("SENSEAPP_PER_PERSON_MB", "1")
    content, number_sent = noise(MB // 10), 63
    urls = [f"/_stcore/upload_file/session-1/file-{number}" for number in range(number_sent)]
    assert {server.put(form(content), url=url) for url in urls} == {204}  # pages say why
    refused = [
        upload
        for number in range(number_sent)
        if isinstance(upload := server.registry.look("session-1", f"file-{number}"), str)
    ]
    assert sum(path.stat().st_size for path in server.files) == MB
    assert len(server.files) == 10
    assert sum("Your uploads may take 1 MB" in sentence for sentence in refused) == 50
    assert sum("Up to 60 uploads a minute" in sentence for sentence in refused) == 3


def test_files_that_no_page_takes_do_not_pile_up(server: Server) -> None:
    for number in range(600):
        server.registry.keep("session-1", f"file-{number}", "full", server.service)
    held = [number for number in range(600) if server.registry.look("session-1", f"file-{number}")]
    assert held == list(range(88, 600))  # more than the 300 loose pictures that may come at once


def test_with_login_only_the_person_whose_page_asked_may_send(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    server.registry.expect("session-ann", Service(server.backend, "https://login|ann"))
    url = "/_stcore/upload_file/session-ann/file-1"
    assert server.put(form(b"few"), url=url) == 403
    claims = {"is_logged_in": True, "iss": "https://login", "sub": "bob"}
    monkeypatch.setattr(logins, "login_claims", lambda cookies: claims)
    assert server.put(form(b"few"), url=url) == 403
    claims["sub"] = "ann"
    assert server.put(form(b"few"), url=url) == 204


def test_an_idle_body_is_given_up(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(to_disk, "_WINDOW_SECONDS", 0.2)
    sizes: list[int] = []

    async def idle() -> AsyncIterator[bytes]:
        yield form(noise(MB))[:70_000]
        await asyncio.sleep(0.1)
        sizes.extend(path.stat().st_size for path in server.files)
        await asyncio.sleep(60)

    began = time.monotonic()
    assert server.put(idle(), headers=TYPE | {"Content-Length": "2000000000"}) == 408
    assert time.monotonic() - began < 5
    assert all(size < MB for size in sizes)  # two gigabytes were announced
    assert server.files == []


def test_a_body_that_drips_is_given_up(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(to_disk, "_WINDOW_SECONDS", 0.3)
    body = form(noise(MB))

    async def drips() -> AsyncIterator[bytes]:
        for place in range(len(body)):
            yield body[place : place + 1]
            await asyncio.sleep(0.02)

    assert server.put(drips()) == 408
    assert server.files == []


def test_a_header_without_end_is_refused(server: Server) -> None:
    body = f"--{BOUNDARY}\r\nContent-Disposition: form-data; name=".encode() + b"x" * MB
    assert server.put(in_pieces(body, 100)) == 400
    assert server.files == []


@pytest.mark.parametrize("announced", [True, False])
def test_a_file_over_the_limit_is_refused_whether_it_says_so_or_not(server, monkeypatch, announced) -> None:
    monkeypatch.setenv("SENSEAPP_MAX_UPLOAD_MB", "5")
    body = form(noise(7 * MB))
    assert server.put(body if announced else in_pieces(body, 100_000)) == 413
    assert server.files == []
    assert server.in_memory.get_files("session-1", ["file-1"]) == []


def test_a_quota_is_told_to_the_page_and_nothing_is_stored(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SENSEAPP_PER_PERSON_MB", "6")
    assert server.put(form(noise(7 * MB))) == 204
    upload = server.registry.take("session-1", "file-1")
    assert isinstance(upload, str)
    assert "Your uploads may take 6 MB" in upload
    assert server.files == []


def test_a_full_disk_is_told_to_the_page_and_nothing_is_left(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    reserve = server.service.inputs.reserve_upload

    def full(**announced: int) -> Path:
        path = reserve(**announced)
        path.unlink()
        path.symlink_to("/dev/full")
        return path

    monkeypatch.setattr(server.service.inputs, "reserve_upload", full)
    monkeypatch.setattr(server.service.inputs, "extend_upload", lambda path, num_bytes: None)
    assert server.put(form(noise(6 * MB))) == 204
    upload = server.registry.take("session-1", "file-1")
    assert isinstance(upload, str)
    assert "No space left on device" in upload
    assert not list((server.home / "uploads").rglob("upload"))


@pytest.mark.parametrize(
    ("url", "status"),
    [
        ("/_stcore/upload_file/session-2/file-1", 403),  # no page of it shows an uploader
        ("/_stcore/upload_file/stranger/file-1", 400),  # there is no such session
        ("/_stcore/upload_file/session-1/file-1/more", 404),
        ("/_stcore/upload_file/../../etc/passwd", 404),
    ],
)
def test_only_a_session_that_was_asked_may_send(server: Server, url: str, status: int) -> None:
    assert server.put(form(noise(6 * MB)), url=url) == status
    assert server.files == []


def test_without_the_forgery_token_no_byte_is_stored(server: Server) -> None:
    config.set_option("server.enableXsrfProtection", True)
    assert server.put(form(noise(6 * MB))) == 403
    assert server.files == []


@pytest.mark.parametrize(
    ("body", "headers"),
    [
        (form(noise(5 * MB), parts=2), TYPE),
        (form(noise(6 * MB))[:-3], TYPE),
        (noise(6 * MB), TYPE),
        (form(noise(6 * MB)), {"Content-Type": "multipart/form-data"}),
        (form(noise(6 * MB)), {"Content-Type": "text/plain"}),
    ],
)
def test_a_form_without_exactly_one_whole_file_leaves_nothing(server, body, headers) -> None:
    assert server.put(body, headers=headers) == 400
    assert server.files == []
    assert server.registry.take("session-1", "file-1") is None


def test_a_browser_that_goes_away_leaves_nothing(server: Server) -> None:
    class Gone(Exception):
        pass

    async def breaks_off() -> AsyncIterator[bytes]:
        yield form(noise(6 * MB))[: 5 * MB]
        raise Gone

    with pytest.raises(Gone):
        server.put(breaks_off())
    assert server.files == []


def test_a_file_sent_again_replaces_the_first_and_one_taken_back_is_removed(server: Server) -> None:
    assert server.put(form(noise(6 * MB))) == 204
    assert server.put(form(noise(5 * MB))) == 204
    assert [path.stat().st_size for path in server.files] == [5 * MB]
    assert server.request("DELETE", URL).status_code == 204
    assert server.files == []


def test_files_go_a_while_after_their_session(server: Server) -> None:
    for name in ("taken", "left"):
        assert server.put(form(noise(6 * MB)), url=f"/_stcore/upload_file/session-1/{name}") == 204
    server.registry.take("session-1", "taken")
    server.registry.close_ended(lambda session_id: False)
    assert len(server.files) == 2  # a laptop that was closed for a moment finds them again
    server.seconds = 500
    server.registry.close_ended(lambda session_id: True)
    server.seconds = 1000
    server.registry.close_ended(lambda session_id: False)
    assert len(server.files) == 2
    server.seconds = 1200
    server.registry.close_ended(lambda session_id: False)
    assert server.files == []
    assert server.registry.service_of("session-1") is None


def test_zips_in_one_another_are_looked_into_up_to_a_limit(tmp_path: Path) -> None:
    picture = tmp_path / "a.png"
    picture.write_bytes(png(1))
    packed = picture
    for depth in range(60):  # two in each: all of them would be 2⁶⁰
        name = tmp_path / f"{depth}.zip"
        with zipfile.ZipFile(name, "w") as archive:
            archive.write(packed, f"inner{packed.suffix}")
            archive.infolist().append(archive.infolist()[0])  # the directory lists it twice
        packed = name
        found = list(zip_entries(packed))
        assert len(found) == 2 * min(2 ** (depth + 1) - 1, 40)
        if depth < 5:
            assert (picture.name.replace("a", "inner"), *zip_entry(picture)[1:]) in found
