"""A TCP proxy on the loopback interface that counts what passes."""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import Self

__all__ = ["Proxy"]

_PIECE = 1 << 16


class Proxy:
    """Accepts connections on `port` and leads them on; `carried` counts the bytes of both directions."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._target = ("127.0.0.1", 0)
        self._sockets: list[socket.socket] = [self._listener]
        self._lock = threading.Lock()
        self.port: int = self._listener.getsockname()[1]
        self.carried = 0

    def lead_to(self, host: str, port: int) -> None:
        """Say where connections go."""
        self._target = (host, port)

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        for one in self._sockets:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(self._target)
            self._sockets += [client, server]
            for one, other in ((client, server), (server, client)):
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                threading.Thread(target=self._carry, args=(one, other), daemon=True).start()

    def _carry(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while piece := source.recv(_PIECE):
                with self._lock:
                    self.carried += len(piece)
                target.sendall(piece)
        for one in (source, target):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
