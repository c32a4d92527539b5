"""What one console is started with."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["ConsoleConfig"]


@dataclass(frozen=True, slots=True)
class ConsoleConfig:
    """The settings of one console.

    `dsn` names the server and the database; user and password in it are not used, since each visitor logs in. `hosts`
    are the names under which browsers may call it; a page of another site that resolves to this address gets nothing.
    `proxies` are addresses whose X-Forwarded-For and X-Forwarded-Proto are believed. `without_password` lets in whom
    the server lets in without asking for a password, such as everybody on this machine where pg_hba.conf says trust.
    `every` is the number of seconds between two looks of a live page, `idle` after how many a session ends.
    """

    dsn: str = ""
    host: str = "127.0.0.1"
    port: int = 8090
    root_path: str = ""
    hosts: tuple[str, ...] = ("127.0.0.1", "localhost", "[::1]")
    proxies: tuple[str, ...] = ()
    read_only: bool = False
    without_password: bool = False
    every: float = 2.0
    idle: float = 1800.0
