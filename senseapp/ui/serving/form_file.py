"""Take the one file out of a multipart form as its bytes come by."""

from __future__ import annotations

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
        _, options = parse_options_header(content_type)
        self._boundary = options.get(b"boundary", b"")
        if not self._boundary:
            raise _malformed()
        self._head = bytearray()
        self._content = bytearray()
        self._in_value = False
        self._parts = 0
        self._complete = False
        self._parser = MultipartParser(
            self._boundary,
            {
                "on_part_begin": self._begin_part,
                "on_header_field": self._extend_head,
                "on_header_value": self._extend_value,
                "on_header_end": self._end_header,
                "on_part_data": self._extend_content,
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
        taken, self._content = self._content, bytearray()
        return bytes(taken)

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
        return line + b"\r\n" + bytes(self._head) + b"\r\n" + b"\r\n" + line + b"--\r\n"

    def _begin_part(self) -> None:
        self._parts += 1
        if self._parts > 1:
            raise HTTPException(400, "Send one file at a time.")

    def _extend_head(self, data: bytes, start: int, end: int) -> None:
        self._head += data[start:end]

    def _extend_value(self, data: bytes, start: int, end: int) -> None:
        if not self._in_value:  # a value that is split between two pieces comes in two calls
            self._head += b": "
            self._in_value = True
        self._head += data[start:end]

    def _end_header(self) -> None:
        self._head += b"\r\n"
        self._in_value = False

    def _extend_content(self, data: bytes, start: int, end: int) -> None:
        self._content += memoryview(data)[start:end]

    def _end(self) -> None:
        self._complete = True


def _malformed() -> HTTPException:
    return HTTPException(400, "This is not a form with one file.")
