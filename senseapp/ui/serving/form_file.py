"""Take the one file out of a multipart form as its bytes come by.

Starlette's own parser puts files where this process has its temporary ones, without a limit on their size and without
regard to the room that a person has left; so only the parser under it is used.
"""

from __future__ import annotations

from collections.abc import Callable

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.exceptions import HTTPException


class FormFile:
    """Reads a form that holds one file and nothing else, in pieces of any size.

    Args:
        content_type: of the request, ``multipart/form-data; boundary=...``.

    Raises:
        HTTPException: 400, from here and from :meth:`read`: it is no such form.
    """

    def __init__(self, content_type: str) -> None:
        self._boundary: bytes = parse_options_header(content_type)[1].get(b"boundary", b"")
        if not self._boundary:
            raise _malformed()
        self._field, self._value, self._head, self._content = (bytearray() for _ in range(4))
        self._parts = 0
        self._complete = False
        self._parser = MultipartParser(
            self._boundary,
            {
                "on_part_begin": self._begin_part,
                "on_header_field": _appending_to(self._field),
                "on_header_value": _appending_to(self._value),
                "on_header_end": self._end_header,
                "on_part_data": _appending_to(self._content),
                "on_end": self._end,
            },
        )

    def read(self, piece: bytes) -> None:
        """Take in the next piece of the form."""
        try:
            self._parser.write(piece)
        except FormParserError as error:
            raise _malformed() from error

    def content(self) -> bytes:
        """Return the bytes of the file that have come since the last call."""
        taken = bytes(self._content)
        self._content.clear()
        return taken

    @property
    def num_waiting(self) -> int:
        """Bytes that :meth:`content` would return."""
        return len(self._content)

    def without_content(self) -> bytes:
        """Return the form with the file's name and type but none of its bytes.

        Raises:
            HTTPException: 400: the form ended early.
        """
        if not self._complete or self._parts != 1:
            raise _malformed()
        line = b"--" + self._boundary
        return line + b"\r\n" + bytes(self._head) + b"\r\n\r\n" + line + b"--\r\n"

    def _begin_part(self) -> None:
        self._parts += 1
        if self._parts > 1:
            raise HTTPException(400, "Send one file at a time.")

    def _end_header(self) -> None:
        self._head += self._field + b": " + self._value + b"\r\n"
        self._field.clear()
        self._value.clear()

    def _end(self) -> None:
        self._complete = True


def _appending_to(buffer: bytearray) -> Callable[[bytes, int, int], None]:
    """Return what collects a header or content that comes in several pieces."""

    def append(data: bytes, start: int, end: int) -> None:
        buffer.extend(memoryview(data)[start:end])

    return append


def _malformed() -> HTTPException:
    return HTTPException(400, "This is not a form with one file.")
