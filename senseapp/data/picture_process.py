"""Decode foreign picture files in processes with limits on time and memory.

A file of a few kilobytes can keep a decoder busy for hours: a progressive JPEG of thousands of scans, a GIF of a
million comments. No thread can be ended in the middle of a C library, but the system ends a process: each picture has
a few seconds of processor time, and all have a fixed amount of memory, whatever their format.

``python -m senseapp.data.picture_process`` is such a process. It reads a line of JSON and a file, and answers with a
line of JSON and the pixels.
"""

import atexit
import select
import signal
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import IO, Any

from PIL import Image

from senseapp.core.process import ChildProcess, give_back_freed_memory, read_line, write_line
from senseapp.data.contents import Unreadable
from senseapp.data.decoding import ChannelMode, Decoded, decoded_picture
from senseapp.data.geometry import EvalTransform

CPU_SECONDS, WALL_SECONDS = 4.0, 7.0
"""Of one picture. The largest ordinary ones, of 64 million pixels, take 1 to 2.5 s."""
REPLY_SECONDS = 60.0
"""In which a process must answer, whatever its own clocks say; to start one takes seconds on a busy machine."""
MOST_PROCESSES = 4
"""That decode at the same time."""
_MEMORY_BYTES = 1_200_000_000  # of each; 64 million pixels of the usual formats fit
_IDLE_SECONDS = 1.0  # the next picture of a set comes sooner
_TIME_IS_UP = tuple(-getattr(signal, name) for name in ("SIGPROF", "SIGALRM") if hasattr(signal, name))


class TooSlow(Unreadable):
    """A picture took more time than any ordinary one does."""


class PictureDecoder(ChildProcess):
    """A process that decodes one picture at a time; ``program`` is what Python is started with."""

    def __init__(self, program: Sequence[str] = ("-m", "senseapp.data.picture_process")) -> None:
        super().__init__(*program)
        self._silent = False  # it did not answer in time

    def decode(self, file: bytes, mode: ChannelMode, transform: EvalTransform | None = None) -> Decoded:
        """Return the decoded picture, prepared on request; raises Unreadable, TooSlow where it takes too long."""
        asked = {"bytes": len(file), "mode": mode, "transform": transform and asdict(transform)}
        clock = threading.Timer(REPLY_SECONDS, self._end_silent)  # so that no read waits for ever
        clock.daemon = True
        clock.start()
        try:
            write_line(self.requests, asked)
            self.requests.write(file)
            self.requests.flush()
            return self._decoded(read_line(self.answers), mode, transform)
        except Unreadable:
            raise
        except (OSError, ValueError, EOFError) as error:  # the process has ended
            raise self._reason() from error
        except BaseException:  # it waits for the rest of this exchange, and would take the next one for it
            self.close()
            raise
        finally:
            clock.cancel()

    def close(self) -> None:
        """End the process."""
        self.end()
        self.answers.close()

    def _end_silent(self) -> None:
        self._silent = True
        self.kill()

    def _decoded(self, answer: dict[str, Any], mode: ChannelMode, transform: EvalTransform | None) -> Decoded:
        if "unreadable" in answer:
            raise Unreadable(answer["unreadable"])
        width, height = answer["sent"]
        kind = "RGB" if mode == "RGB" or (mode == "index" and answer["colours"]) else "L"
        picture, *more = (_received(self.answers, kind, (width, height)) for _ in range(answer["pictures"]))
        return Decoded(
            picture=picture,
            more=tuple(more),
            size=tuple(answer["size"]),
            remarks=tuple(answer["remarks"]),
            bits=answer["bits"],
            geometry=None if transform is None else transform.geometry(tuple(answer["stored"][0]), answer["stored"][1]),
        )

    def _reason(self) -> Unreadable:
        status = self.end(5.0)  # it has closed its output
        if self._silent:
            return TooSlow(f"was not decoded within {REPLY_SECONDS:.0f} s, which no ordinary picture takes")
        if status in _TIME_IS_UP:
            return TooSlow(f"takes more than {CPU_SECONDS:.0f} s to decode, which no ordinary picture does")
        return Unreadable("takes too much memory, or breaks the program that decodes it")


class PictureDecoders:
    """Pool of decoder processes: one for each thread that decodes, of which one is kept for later."""

    def __init__(self) -> None:
        self._idle: list[PictureDecoder] = []
        self._lock = threading.Lock()

    def decoded(self, file: bytes, mode: ChannelMode, transform: EvalTransform | None = None) -> Decoded:
        """Decode a picture in one of the processes; see :meth:`PictureDecoder.decode`."""
        with self._lock:
            decoder = self._idle.pop() if self._idle else None
        if decoder is not None and not decoder.alive:
            decoder.close()
            decoder = None
        decoder = decoder or PictureDecoder()
        try:
            return decoder.decode(file, mode, transform)
        finally:
            if decoder.alive:
                with self._lock:
                    self._idle.append(decoder)
            else:
                decoder.close()

    def rest(self, kept: int = 1) -> None:
        """End the processes that have nothing to do, but for ``kept``: to start one takes a fifth of a second."""
        with self._lock:
            ended, self._idle = self._idle[kept:], self._idle[:kept]
        for decoder in ended:
            decoder.close()


DECODERS = PictureDecoders()
"""This process's own."""
atexit.register(DECODERS.rest, 0)


def decoded(file: bytes, mode: ChannelMode, transform: EvalTransform | None = None, *, foreign: bool) -> Decoded:
    """Decode a picture; a ``foreign`` one in a process that can be ended. Raises Unreadable."""
    return (DECODERS.decoded if foreign else decoded_picture)(file, mode, transform)


def serve(requests: IO[bytes], answers: IO[bytes]) -> None:
    """Decode what comes, until nothing more does."""
    while True:
        _rest_until_asked(requests)
        try:
            _decode_next(requests, answers)
        except EOFError:
            return
        answers.flush()


def _decode_next(requests: IO[bytes], answers: IO[bytes]) -> None:
    """Decode one picture, in a call of its own: whoever waits for the next one holds neither file nor pixels."""
    asked = read_line(requests)
    file, transform = requests.read(asked["bytes"]), asked["transform"] and EvalTransform(**asked["transform"])
    _set_clock(CPU_SECONDS, WALL_SECONDS)
    try:
        found: Decoded | Unreadable = decoded_picture(file, asked["mode"], transform)
    except Unreadable as reason:
        found = reason
    _set_clock(0, 0)
    if isinstance(found, Unreadable):
        write_line(answers, {"unreadable": str(found)})
    else:
        _send(found, answers)


def _rest_until_asked(requests: IO[bytes]) -> None:
    """Return freed memory to the system after a moment without requests: a large file takes up to a GB."""
    with suppress(OSError, ValueError):  # no pipe, or a system that cannot wait for one
        if not select.select([requests], [], [], _IDLE_SECONDS)[0]:
            give_back_freed_memory()


def _send(decoded: Decoded, answers: IO[bytes]) -> None:
    pictures = (decoded.picture, *decoded.more)
    width, height = pictures[0].size
    stored = decoded.geometry and (decoded.geometry.size, decoded.geometry.orientation)
    told = {"size": decoded.size, "remarks": decoded.remarks, "bits": decoded.bits, "stored": stored}
    sent = {"sent": [width, height], "pictures": len(pictures), "colours": pictures[0].mode == "RGB"}
    write_line(answers, told | sent)
    for picture in pictures:
        answers.write(picture.tobytes())


def _received(stream: IO[bytes], kind: str, size: tuple[int, int]) -> Image.Image:
    pixels = bytearray(size[0] * size[1] * len(kind))
    left = memoryview(pixels)
    while left:
        count = stream.readinto(left)  # type: ignore[attr-defined]  # a buffered reader
        if not count:
            raise EOFError
        left = left[count:]
    return Image.frombuffer(kind, size, pixels, "raw", kind, 0, 1)


def _set_clock(cpu_seconds: float, wall_seconds: float) -> None:
    """Have the system end this process after so long, in C code too; 0 for never."""
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_PROF, cpu_seconds)
        signal.setitimer(signal.ITIMER_REAL, wall_seconds)


def _limit_memory() -> None:
    with suppress(ImportError, ValueError, OSError):
        import resource

        resource.setrlimit(resource.RLIMIT_DATA, (_MEMORY_BYTES, _MEMORY_BYTES))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _widen(stream: IO[bytes]) -> None:
    """Let more pixels wait in the pipe, where the system can: a switch of processes for each 64 KiB is slow."""
    with suppress(ImportError, AttributeError, OSError):
        import fcntl

        # the most that Linux gives without privileges (/proc/sys/fs/pipe-max-size)
        fcntl.fcntl(stream, fcntl.F_SETPIPE_SZ, 1 << 20)


def main() -> None:
    """Serve whoever is at the other end of standard input and output."""
    _limit_memory()
    _widen(sys.stdout.buffer)
    with suppress(OSError):
        serve(sys.stdin.buffer, sys.stdout.buffer)


if __name__ == "__main__":
    main()
