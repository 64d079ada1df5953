"""Calls of converters and quantizers: without what they print, and with their errors in one sentence."""

from __future__ import annotations

import io
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout

from senseapp.core.errors import InvalidSpec, first_line_of, is_about_memory


@contextmanager
def library_call(failed: str) -> Iterator[None]:
    """Hide progress, warnings and logs of the body; an error of any of its packages is InvalidSpec.

    Raises:
        InvalidSpec: the body failed; the message is ``failed`` and the cause.
    """
    logging.disable(logging.WARNING)
    try:
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except Exception as error:
        if is_about_memory(error):
            raise
        raise InvalidSpec(f"{failed}: {type(error).__name__}: {first_line_of(error)}.") from error
    finally:
        logging.disable(logging.NOTSET)
