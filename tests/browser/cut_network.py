"""A TCP proxy between browser and server whose network can be cut."""

import socket
import threading
from contextlib import suppress

from tests.serving import free_port

_CHUNK = 65_536


class CutNetwork:
    """Forwards ``port`` to ``target`` until it is cut: then connections are reset, and new ones refused."""

    def __init__(self, target: int) -> None:
        self.port, self._target = free_port(), target
        self._is_up = True
        self._open: set[socket.socket] = set()
        self._listener = socket.create_server(("127.0.0.1", self.port))
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """Cut all connections."""
        self._is_up = False
        self._close_all()

    def restore(self) -> None:
        """Let new connections through."""
        self._is_up = True

    def close(self) -> None:
        """Stop listening."""
        self._listener.close()
        self._close_all()

    def _close_all(self) -> None:
        for each in list(self._open):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        with suppress(OSError):  # closed
            while True:
                near, _ = self._listener.accept()
                if not self._is_up:
                    near.close()
                    continue
                far = socket.create_connection(("127.0.0.1", self._target))
                self._open |= {near, far}
                for source, sink in ((near, far), (far, near)):
                    threading.Thread(target=self._forward, args=(source, sink), daemon=True).start()

    def _forward(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while content := source.recv(_CHUNK):
                sink.sendall(content)
        for each in (source, sink):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            self._open.discard(each)
