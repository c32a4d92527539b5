"""Who is logged in: a cookie with a random number leads to the connections of a role, which exist in memory only."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import secrets
import time
from collections import Counter, deque
from dataclasses import dataclass, field

import psycopg

from pgps.errors import from_database
from pgps_console.config import ConsoleConfig
from pgps_console.database import Access, Places, Refused

__all__ = ["COOKIE", "Session", "Sessions"]

COOKIE = "pgps_console"
_MOST_SESSIONS = 100
_MOST_FAILURES = 10  # of one address, within a minute
_MOST_ADDRESSES = 1000  # kept longer than a minute
_REST_AFTER = 60.0


@dataclass(slots=True)
class Session:
    """One visitor. `csrf` is the secret that forms carry; `said` are messages for the next page.

    `login` has logged in, and `role` is whom the statements run as: a role may be set to begin as another one.
    """

    login: str
    role: str
    database: str
    is_admin: bool
    access: Access
    csrf: str = field(default_factory=lambda: secrets.token_urlsafe(24))
    seen: float = field(default_factory=time.monotonic)
    said: deque[str] = field(default_factory=deque)

    def owns(self, token: str) -> bool:
        """Whether a form was made for this visitor."""
        return hmac.compare_digest(token.encode(), self.csrf.encode())


class Sessions:
    """All visitors of one console."""

    def __init__(self, config: ConsoleConfig) -> None:
        self._config = config
        self._known: dict[str, Session] = {}
        self._failures: dict[str, deque[float]] = {}
        self._places = Places()

    def find(self, token: str | None, *, touch: bool = True) -> Session | None:
        """Return the visitor with this cookie, and note that they were here: a page that is merely open is not."""
        session = self._known.get(_digest(token)) if token else None
        if session is None or time.monotonic() - session.seen > self._config.idle:
            return None
        if touch:
            session.seen = time.monotonic()
        return session

    async def login(self, user: str, password: str, address: str) -> str:
        """Return the cookie of a new visitor; raises Refused, or what the server says, as PgpsError."""
        tried = self._note_attempt(address)
        access = Access(
            self._config.dsn,
            user,
            password,
            without_password=self._config.without_password,
            places=self._places,
        )
        try:
            async with access.read() as reader:
                known = await reader.first(_WHO)
        except psycopg.Error as error:
            await access.close()
            # The server's own words would tell which roles there are.
            if isinstance(error, psycopg.OperationalError) and error.sqlstate is None:
                text = "the server does not let this role in with this password, or it cannot be reached"
                raise Refused(text, hint="Try: psql with the same role and password.") from error
            raise from_database(error) from error
        except BaseException:
            await access.close()
            raise
        assert known is not None
        with contextlib.suppress(ValueError):
            self._failures.get(address, deque()).remove(tried)
        if not known["installed"]:
            await access.close()
            raise Refused(f'pgps is not installed in database "{known["database"]}"', hint="Type: pgps install")
        try:
            left = self._make_room()
        except Refused:
            await access.close()
            raise
        token = secrets.token_urlsafe(32)
        self._known[_digest(token)] = Session(
            known["login"], known["role"], known["database"], known["is_admin"], access
        )
        if left is not None:
            await left.access.close()
        return token

    def _make_room(self) -> Session | None:
        """Take away the visit that has to end for one more, None when there is room; raises Refused.

        It is one of the role that has most of them, so that nobody who logs in without end keeps anybody else out, or
        throws out anybody who is here once.
        """
        if len(self._known) < _MOST_SESSIONS:
            return None
        gives, most = Counter(session.login for session in self._known.values()).most_common(1)[0]
        if most == 1:
            raise Refused("too many people are logged in", hint="Wait until one of them has left.")
        oldest = min((one for one in self._known.items() if one[1].login == gives), key=lambda one: one[1].seen)
        return self._known.pop(oldest[0])

    def _note_attempt(self, address: str) -> float:
        """Count an attempt as failed until it succeeds: of many at once only so many are made. Raises Refused."""
        now = time.monotonic()
        if address not in self._failures and len(self._failures) >= _MOST_ADDRESSES:
            self._failures = {one: at for one, at in self._failures.items() if at and now - at[-1] < 60}
        failed = self._failures.setdefault(address, deque(maxlen=_MOST_FAILURES))
        if len([at for at in failed if now - at < 60]) >= _MOST_FAILURES:
            raise Refused("too many failed attempts", hint="Wait for a minute.")
        failed.append(now)
        return now

    async def logout(self, token: str | None) -> None:
        """End a visit."""
        session = self._known.pop(_digest(token), None) if token else None
        if session is not None:
            await session.access.close()

    async def keep_house(self) -> None:
        """Close connections that are not used, and end visits that have gone silent; until cancelled."""
        while True:
            await asyncio.sleep(min(_REST_AFTER, self._config.idle) / 2)
            now = time.monotonic()
            for digest, session in list(self._known.items()):
                if now - session.seen > self._config.idle:
                    del self._known[digest]
                    await session.access.close()
                elif now - session.access.used > _REST_AFTER:
                    await session.access.rest()

    async def close(self) -> None:
        """End all visits."""
        known, self._known = list(self._known.values()), {}
        for session in known:
            with contextlib.suppress(psycopg.Error):
                await session.access.close()


def _digest(token: str | None) -> str:
    # A look-up by the secret itself would take a time that depends on it.
    return hashlib.sha256((token or "").encode()).hexdigest()


_WHO = """
    select session_user::text as login, current_user::text as role, current_database()::text as database,
           to_regnamespace('pgps') is not null as installed,
           coalesce(pg_has_role(current_user, (select oid from pg_roles where rolname = 'pgps_admin'), 'usage'), false)
               as is_admin
"""
