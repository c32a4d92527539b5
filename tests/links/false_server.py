"""A server that is no PostgreSQL, which asks whoever connects for a password and notes what comes."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

# The answers that ask, by the name of the database that is wanted: libpq's authentication codes 3, 5 and 10.
_ASKS = {
    "cleartext": struct.pack("!I", 3),
    "md5": struct.pack("!I", 5) + b"salt",
    "scram": struct.pack("!I", 10) + b"SCRAM-SHA-256\0\0",
}
_ENCRYPTION = (80877103, 80877104)  # SSLRequest, GSSENCRequest


@dataclass
class FalseServer:
    """What came: who connected, as user and database, who has answered or hung up, and what each of them gave away."""

    port: int
    came: set[tuple[str, str]] = field(default_factory=set)
    answered: set[tuple[str, str]] = field(default_factory=set)
    given: dict[tuple[str, str], bytes] = field(default_factory=dict)

    def serve(self, session: socket.socket) -> None:
        """Ask one session for a password, and hang up."""
        session.settimeout(10)
        with contextlib.suppress(OSError, struct.error), session, session.makefile("rb") as read:
            while True:
                (length, code) = struct.unpack("!II", read.read(8))
                body = read.read(length - 8)
                if code not in _ENCRYPTION:
                    break
                session.sendall(b"N")
            words = body.decode().split("\0")
            said = dict(zip(words[::2], words[1::2], strict=False))
            who = (said.get("user", ""), said.get("database", ""))
            self.came.add(who)
            ask = _ASKS[who[1]]
            session.sendall(b"R" + struct.pack("!I", len(ask) + 4) + ask)
            try:
                kind, length = struct.unpack("!cI", read.read(5))
                if kind == b"p":
                    self.given[who] = read.read(length - 4)
            finally:
                self.answered.add(who)


@contextlib.contextmanager
def false_server() -> Iterator[FalseServer]:
    """Run one until the block ends."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = FalseServer(listener.getsockname()[1])

        def accept() -> None:
            with contextlib.suppress(OSError):
                while True:
                    session, _ = listener.accept()
                    server.serve(session)

        thread = threading.Thread(target=accept)
        thread.start()
        try:
            yield server
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()
