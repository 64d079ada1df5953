"""A visitor without a browser: speaks Streamlit's protocol, keeps the page's elements, answers its timers, clicks.

It asks of the server what a browser would, but draws nothing: twenty browsers would take the processor that is to be
measured.
"""

from __future__ import annotations

import asyncio
import time
import urllib.parse
import urllib.request
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import websockets
from streamlit.proto.BackMsg_pb2 import BackMsg
from streamlit.proto.ForwardMsg_pb2 import ForwardMsg
from streamlit.proto.WidgetStates_pb2 import WidgetState

ANSWER_SECONDS = 60.0
XSRF_COOKIE = "_streamlit_xsrf"


_PLAIN = ("text", "code", "json", "html", "text_input", "text_area")  # of the last two, the label is a person's own
_MARKDOWN = ("body", "label", "help", "caption", "element")


class PageBroke(Exception):
    """A page showed an error of its own, or never answered."""


def state_of(widget_id: str, value: Mapping[str, Any]) -> WidgetState:
    """Return what a page says of a widget, as ``{"double_value": 16}``; lists are arrays of texts."""
    state = WidgetState(id=widget_id)
    for name, given in value.items():
        if isinstance(given, list):
            getattr(state, name).data.extend(given)
        else:
            setattr(state, name, given)
    return state


class Visitor:
    """One open page.

    Args:
        url: of the server, ``http://localhost:8501``.
        page: to open, such as ``runs``.
        query: of the address, such as ``run=0123``.
        cookies: of the browser; without any it gets those that the server gives to each browser.
    """

    def __init__(self, url: str, page: str = "", query: str = "", *, cookies: Mapping[str, str] | None = None) -> None:
        self._url = url
        self.cookies = dict(cookies or {})
        self._page = page
        self._query = query
        self._page_hash = ""
        self._known: dict[str, ForwardMsg] = {}
        self._states: dict[str, WidgetState] = {}
        self._timers: dict[str, asyncio.Task[None]] = {}
        self._finished = asyncio.Event()
        self._drawn: set[tuple[int, ...]] = set()
        self._timed: set[str] = set()
        self._elements: dict[tuple[int, ...], Any] = {}
        self._asked: dict[str, asyncio.Future[Any]] = {}
        self._tabs = ""
        self.session_id = ""
        self.fragment_runs = 0

    async def __aenter__(self) -> Self:
        """Open the page and wait until it is there."""
        address = self._url.replace("http", "ws", 1) + "/_stcore/stream"
        self.cookies = await asyncio.to_thread(browser_cookies, self._url) | self.cookies
        self._socket = await websockets.connect(
            address,
            origin=self._url,
            subprotocols=["streamlit", self.cookies[XSRF_COOKIE]],
            additional_headers={"Cookie": cookie_header(self.cookies)},
            max_size=None,
            open_timeout=ANSWER_SECONDS,
        )
        self._listening = asyncio.create_task(self._listen())
        await self._rerun()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the page."""
        for timer in self._timers.values():
            timer.cancel()
        self._listening.cancel()
        await self._socket.close()

    def element(self, kind: str, label: str) -> Any:
        """Return the element of that kind whose label is ``label``, else one whose label holds it.

        Raises:
            PageBroke: there is none.
        """
        found = self._find(kind, label)
        if found is None:
            raise PageBroke(f"There is no {kind} {label!r} on the page {self._page!r}: {self.text()[:300]}")
        return found

    def has(self, kind: str, label: str) -> bool:
        """Return whether there is an element of that kind whose label holds ``label``."""
        return self._find(kind, label) is not None

    def text(self) -> str:
        """Return what the page says in Markdown."""
        return " ".join(
            element.markdown.body for element in self._elements.values() if element.WhichOneof("type") == "markdown"
        )

    def labels(self) -> set[str]:
        """Return what is written on its buttons."""
        return {element.button.label for element in self._elements.values() if element.WhichOneof("type") == "button"}

    async def click(self, label: str, *, kind: str = "button") -> float:
        """Press a button and return the seconds until the page has answered."""
        state = WidgetState(id=self.element(kind, label).id, trigger_value=True)
        return await self._rerun(state)

    async def open_tab(self, label: str) -> float:
        """Open a tab of the page, and return the seconds to the answer."""
        self._states[self._tabs] = WidgetState(id=self._tabs, string_value=label)
        return await self._rerun()

    def send_file(self, content: bytes, name: str = "file") -> tuple[str, str]:
        """Send a file for this page's session, and return the path and the id that it got.

        Raises:
            OSError: it was refused.
        """
        file_id = str(uuid.uuid4())
        path = f"/_stcore/upload_file/{self.session_id}/{file_id}"
        _put(self._url, path, name, content, self.cookies)
        return path, file_id

    @property
    def has_finished(self) -> bool:
        """Whether this is the page of a run that is done."""
        return self.page == "results" and "Finished]" in self.text()

    def alerts(self) -> list[str]:
        """Return what the page warns of."""
        return [element.alert.body for element in self._elements.values() if element.WhichOneof("type") == "alert"]

    def markdown(self) -> Iterator[str]:
        """Yield every text of the page that is shown as Markdown."""
        for element in self._elements.values():
            kind = element.WhichOneof("type")
            if kind not in _PLAIN:
                yield from _texts_named(getattr(element, kind), _MARKDOWN)

    def elements(self) -> list[Any]:
        """Return what the page shows."""
        return list(self._elements.values())

    async def say(self, state: WidgetState) -> float:
        """Say that a widget is in some state, whether the page has it or not."""
        return await self._rerun(state)

    async def tick_first_row(self) -> float:
        """Tick the first row of the page's table, and return the seconds to the answer."""
        tables = (element.dataframe for element in self.elements() if element.WhichOneof("type") == "dataframe")
        state = WidgetState(id=next(table.id for table in tables if table.id))
        state.string_value = '{"selection": {"rows": [0], "columns": [], "cells": []}}'
        self._states[state.id] = state
        return await self._rerun()

    async def set(self, kind: str, label: str, **value: Any) -> float:
        """Set a widget, as ``set("number_input", "Images", double_value=16)``, and return the seconds to the answer."""
        state = state_of(self.element(kind, label).id, value)
        self._states[state.id] = state
        return await self._rerun()

    async def upload(self, label: str, name: str, content: bytes, *, keep: bool = False) -> float:
        """Send a file as the uploader's own script does, and return the seconds until the page has answered.

        With ``keep`` the field holds the file afterwards too, for a button to be pressed.
        """
        started = time.perf_counter()
        field = self.element("file_uploader", label)
        path, file_id = await asyncio.to_thread(self.send_file, content, name)
        state = WidgetState(id=field.id)
        info = state.file_uploader_state_value.uploaded_file_info.add(name=name, size=len(content), file_id=file_id)
        info.file_urls.file_id, info.file_urls.upload_url, info.file_urls.delete_url = file_id, path, path
        self._states[field.id] = state
        await self._rerun()
        if not keep:
            del self._states[field.id]
        return time.perf_counter() - started

    async def address_of(self, label: str) -> str:
        """Press a download button and return the address of the file that the server made.

        Raises:
            PageBroke: the server made none.
        """
        button = self.element("download_button", label)
        return await self.made_for(button.deferred_file_id)

    async def made_for(self, file_id: str) -> str:
        """Ask for the file that a button with this id makes, and return its address.

        Raises:
            PageBroke: the server made none.
        """
        message, asked = BackMsg(), uuid.uuid4().hex
        message.backend_operation_request.request_id = asked
        message.backend_operation_request.session_id = self.session_id
        message.backend_operation_request.deferred_file.file_id = file_id
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._asked[asked] = answer
        await self._socket.send(message.SerializeToString())
        made = await asyncio.wait_for(answer, ANSWER_SECONDS)
        if made.error_msg:
            raise PageBroke(made.error_msg)
        return str(self._url + made.deferred_file.url)

    async def again(self) -> float:
        """Run the page again, as its own timers do, and return the seconds to the answer."""
        return await self._rerun()

    async def go(self, page: str, query: str = "") -> float:
        """Open another page by the sidebar, and return the seconds to the answer."""
        self._page, self._page_hash, self._query = page, "", query
        return await self._rerun()

    async def wait_until(self, holds: Callable[[Self], bool], *, seconds: float = ANSWER_SECONDS) -> None:
        """Wait, answering the page's timers, until something holds of it.

        Raises:
            PageBroke: it does not in time.
        """
        deadline = time.perf_counter() + seconds
        while not holds(self):
            if time.perf_counter() > deadline:
                said = f"{self.alerts()}, {sorted(self.labels())}, {self.text()[:300]}"
                raise PageBroke(f"The page {self._page!r} never came to what was waited for: {said}")
            self._alive()
            await asyncio.sleep(0.02)

    @property
    def page(self) -> str:
        """The page that is shown now; a page may switch to another."""
        return self._page

    @property
    def query(self) -> dict[str, str]:
        """What the address names."""
        return dict(urllib.parse.parse_qsl(self._query))

    def _find(self, kind: str, label: str) -> Any:
        of_kind = [getattr(each, kind) for each in self._elements.values() if each.WhichOneof("type") == kind]
        holding = [each for each in of_kind if label in each.label]
        return next((each for each in holding if each.label == label), next(iter(holding), None))

    async def _rerun(self, trigger: WidgetState | None = None, *, fragment_id: str = "") -> float:
        started = time.perf_counter()
        self._finished.clear()
        await self._send(trigger, fragment_id)
        answered = asyncio.create_task(self._finished.wait())
        await asyncio.wait({answered, self._listening}, timeout=ANSWER_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        answered.cancel()
        self._alive()
        if not self._finished.is_set():
            raise TimeoutError
        return time.perf_counter() - started

    async def _send(self, trigger: WidgetState | None, fragment_id: str) -> None:
        message = BackMsg()
        request = message.rerun_script
        request.query_string, request.page_script_hash, request.page_name = self._query, self._page_hash, self._page
        request.fragment_id, request.is_auto_rerun = fragment_id, bool(fragment_id)
        request.cached_message_hashes.extend(self._known)
        request.widget_states.widgets.extend(self._states.values())
        if trigger is not None:
            request.widget_states.widgets.append(trigger)
        await self._socket.send(message.SerializeToString())

    async def _listen(self) -> None:
        async for raw in self._socket:
            message = ForwardMsg.FromString(raw)  # type: ignore[arg-type]
            if message.WhichOneof("type") == "ref_hash":
                metadata, message = (
                    message.metadata,
                    ForwardMsg.FromString(self._known[message.ref_hash].SerializeToString()),
                )
                message.metadata.CopyFrom(metadata)
            elif message.metadata.cacheable:
                self._known[message.hash] = message
            self._take(message)

    def _take(self, message: ForwardMsg) -> None:
        kind = message.WhichOneof("type")
        if kind == "delta" and message.delta.WhichOneof("type") == "new_element":
            self._drawn.add(tuple(message.metadata.delta_path))
            self._elements[tuple(message.metadata.delta_path)] = message.delta.new_element
        elif kind == "delta" and message.delta.add_block.tab_container.id:
            self._tabs = message.delta.add_block.tab_container.id
        elif kind == "new_session":
            self.session_id = message.new_session.initialize.session_id or self.session_id
            self._drawn, self._timed = set(), set()
        elif kind == "page_info_changed":
            self._query = message.page_info_changed.query_string
        elif kind == "navigation":
            self._page_hash = message.navigation.page_script_hash
            shown = next(page for page in message.navigation.app_pages if page.page_script_hash == self._page_hash)
            self._page = "" if shown.is_default else shown.url_pathname
        elif kind == "backend_operation_response":
            self._asked.pop(message.backend_operation_response.request_id).set_result(
                message.backend_operation_response
            )
        elif kind == "auto_rerun":
            self._start_timer(message.auto_rerun.fragment_id, message.auto_rerun.interval)
        elif kind == "stop_auto_rerun":
            self._stop_timer(message.stop_auto_rerun.fragment_id)
        elif kind == "script_finished":
            self._finish(message.script_finished)

    def _finish(self, how: int) -> None:
        if how == ForwardMsg.FINISHED_FRAGMENT_RUN_SUCCESSFULLY:
            self.fragment_runs += 1
        elif how == ForwardMsg.FINISHED_SUCCESSFULLY:  # what this run did not draw is gone
            self._elements = {path: self._elements[path] for path in self._drawn}
            for fragment_id in set(self._timers) - self._timed:
                self._stop_timer(fragment_id)
            self._finished.set()

    def _start_timer(self, fragment_id: str, interval: float) -> None:
        self._stop_timer(fragment_id)
        self._timed.add(fragment_id)

        async def tick() -> None:
            while True:
                await asyncio.sleep(interval)
                await self._send(None, fragment_id)

        self._timers[fragment_id] = asyncio.create_task(tick())

    def _stop_timer(self, fragment_id: str) -> None:
        timer = self._timers.pop(fragment_id, None)
        if timer is not None:
            timer.cancel()

    def _alive(self) -> None:
        if self._listening.done():
            raise PageBroke(f"The connection of {self._page!r} ended: {self._listening.exception()!r}")
        for element in self._elements.values():
            if element.WhichOneof("type") == "exception":
                raise PageBroke(f"{self._page!r}: {element.exception.type} {element.exception.message}")


def _texts_named(record: Any, names: Sequence[str]) -> Iterator[str]:
    for field, value in record.ListFields():
        if isinstance(value, str):
            if field.name in names:
                yield value
        elif field.message_type is not None and not field.message_type.GetOptions().map_entry:
            for each in value if field.is_repeated else (value,):
                yield from _texts_named(each, names)


def browser_cookies(url: str) -> dict[str, str]:
    """Return the cookies that the server gives to each browser."""
    with urllib.request.urlopen(f"{url}/_stcore/health", timeout=ANSWER_SECONDS) as answer:
        cookies = [part.split(";")[0] for part in answer.headers.get_all("Set-Cookie", [])]
    return dict(cookie.split("=", 1) for cookie in cookies)


def cookie_header(cookies: Mapping[str, str]) -> str:
    """Return the header that holds ``cookies``."""
    return "; ".join(f"{name}={value}" for name, value in cookies.items())


def _put(url: str, path: str, name: str, content: bytes, cookies: Mapping[str, str]) -> None:
    """Send a form with one file, with the forgery token in cookie and header as the browser does."""
    mark = uuid.uuid4().hex
    head = f'--{mark}\r\nContent-Disposition: form-data; name="{name}"; filename="{name}"\r\n\r\n'
    request = urllib.request.Request(
        url + path,
        method="PUT",
        data=head.encode() + content + f"\r\n--{mark}--\r\n".encode(),
        headers={
            "Content-Type": f"multipart/form-data; boundary={mark}",
            "Cookie": cookie_header(cookies),
            "X-Xsrftoken": cookies.get(XSRF_COOKIE, ""),
        },
    )
    with urllib.request.urlopen(request, timeout=ANSWER_SECONDS) as answer:
        answer.read()
