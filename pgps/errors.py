"""What can go wrong, as one small tree.

    PgpsError
    ├── ConfigError               a setting is missing or malformed
    ├── EmbeddedError             an embedded cluster cannot be made, started or found
    │   ├── BinariesMissing
    │   └── StartFailed
    ├── InstallError              pgps cannot be installed into, or removed from, this database
    ├── ClientClosed              the client, or the subscription, is closed
    ├── TypeMismatch              a class does not fit the event type, or does not any more
    └── BrokerError               the database refused; mapped by SQLSTATE, never by text
        ├── UnknownName           42704 (and other undefined names of class 42)
        ├── AlreadyExists         42710 (and other duplicates of class 42)
        ├── NotPermitted          42501
        ├── BadDefinition         the rest of class 42: a filter, a type or a rule that does not compile
        ├── WrongState            55xxx, among them "not advertised"
        ├── BadArgument           22xxx
        ├── ConstraintViolated    23xxx: the event breaks the type's constraints
        ├── LimitExceeded         53xxx and 54xxx
        ├── TryAgain              40xxx: serialization failure or deadlock; the same call may succeed
        ├── SessionTaken          08003: a named client is not connected, or another program has taken its name
        ├── RequestFailed         a queued request ended with an error, whose SQLSTATE it has
        └── ConnectionLost        08xxx, 57P0x, 25P03, 25P04, or the server was never reached

Every error carries `message`, `hint` and `sqlstate`; a hint says what to type. A BrokerError carries what else the
server tells: `detail`, and the `constraint` or `attribute` it is about.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import psycopg

__all__ = [
    "AlreadyExists",
    "BadArgument",
    "BadDefinition",
    "BinariesMissing",
    "BrokerError",
    "ClientClosed",
    "ConfigError",
    "ConnectionLost",
    "ConstraintViolated",
    "EmbeddedError",
    "InstallError",
    "LimitExceeded",
    "NotPermitted",
    "PgpsError",
    "RequestFailed",
    "SessionTaken",
    "StartFailed",
    "TryAgain",
    "TypeMismatch",
    "UnknownName",
    "WrongState",
    "class_of",
    "from_database",
    "host_names",
]


class PgpsError(Exception):
    """Anything pgps refuses to do, with a hint that says what to do instead."""

    def __init__(self, message: str, *, hint: str | None = None, sqlstate: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.sqlstate = sqlstate

    def __str__(self) -> str:
        return f"{self.message}\nHINT:  {self.hint}" if self.hint else self.message


class ConfigError(PgpsError):
    """A setting is missing or malformed."""


class EmbeddedError(PgpsError):
    """An embedded cluster cannot be made, found, started or stopped."""


class BinariesMissing(EmbeddedError):
    """No PostgreSQL server binaries with PL/Python 3 are installed."""


class StartFailed(EmbeddedError):
    """The server did not come up; the message ends with the tail of its log."""


class InstallError(PgpsError):
    """pgps cannot be installed into, upgraded in or removed from this database."""


class ClientClosed(PgpsError):
    """The client, or the subscription, is closed."""


class TypeMismatch(PgpsError):
    """A class does not fit the event type: the attribute, what the class expects, what the type has (None: nothing)."""

    def __init__(
        self,
        message: str,
        *,
        event_type: str,
        attribute: str,
        expected: str,
        found: str | None,
        hint: str | None = None,
    ) -> None:
        super().__init__(message, hint=hint)
        self.event_type = event_type
        self.attribute = attribute
        self.expected = expected
        self.found = found


class BrokerError(PgpsError):
    """The database refused a call."""

    detail: str | None = None
    constraint: str | None = None
    attribute: str | None = None


class UnknownName(BrokerError):
    """An event type, subscription, queue, attribute, role or other name does not exist."""


class AlreadyExists(BrokerError):
    """The name is taken."""


class NotPermitted(BrokerError):
    """The role lacks a privilege."""


class BadDefinition(BrokerError):
    """A filter, attribute list, rule or statement does not compile."""


class WrongState(BrokerError):
    """The object is not in a state that allows this: not advertised, suspended, still in use."""


class BadArgument(BrokerError):
    """An argument or attribute value is malformed or out of range."""


class ConstraintViolated(BrokerError):
    """The event breaks a constraint of its type."""


class LimitExceeded(BrokerError):
    """A limit of pgps or of the server was reached."""


class TryAgain(BrokerError):
    """A conflict with another transaction; repeat the whole transaction."""


class ConnectionLost(BrokerError):
    """The server went away or cannot be reached; whether the last commit took effect is unknown."""


class SessionTaken(BrokerError):
    """A named client is not connected, or another program has taken over its session."""


class RequestFailed(BrokerError):
    """A queued request ended with an error: which request, and what PostgreSQL said."""

    def __init__(
        self, message: str, *, request_id: int, sqlstate: str | None, hint: str | None, detail: str | None
    ) -> None:
        super().__init__(message, hint=hint, sqlstate=sqlstate)
        self.request_id = request_id
        self.detail = detail


# The longest prefix of the SQLSTATE that is listed decides.
_BY_SQLSTATE: dict[str, type[BrokerError]] = {
    "08": ConnectionLost,
    "08003": SessionTaken,
    "22": BadArgument,
    "25P03": ConnectionLost,
    "25P04": ConnectionLost,
    "23": ConstraintViolated,
    "40": TryAgain,
    "42": BadDefinition,
    "42501": NotPermitted,
    "42701": AlreadyExists,
    "42703": UnknownName,
    "42704": UnknownName,
    "42710": AlreadyExists,
    "42723": AlreadyExists,
    "42883": UnknownName,
    "42P01": UnknownName,
    "42P06": AlreadyExists,
    "42P07": AlreadyExists,
    "53": LimitExceeded,
    "53300": ConnectionLost,
    "54": LimitExceeded,
    "55": WrongState,
    "57P01": ConnectionLost,
    "57P02": ConnectionLost,
    "57P03": ConnectionLost,
    "57P05": ConnectionLost,
}


def from_database(error: psycopg.Error) -> BrokerError:
    """Return the pgps error for what PostgreSQL reported; raise it `from` the original.

    The class follows the SQLSTATE alone. An operational error without one never
    reached the server, or lost it on the way: ConnectionLost.
    """
    sqlstate = error.sqlstate
    if sqlstate is None and isinstance(error, psycopg.OperationalError):
        sqlstate = "08006"
    message = error.diag.message_primary or str(error).strip() or type(error).__name__
    told = class_of(sqlstate)(message, hint=error.diag.message_hint, sqlstate=sqlstate)
    told.detail, told.constraint, told.attribute = (
        error.diag.message_detail,
        error.diag.constraint_name,
        error.diag.column_name,
    )
    return told


@contextlib.contextmanager
def host_names() -> Iterator[None]:
    """Raise ConfigError when the block connects to what cannot be the name of a host, such as "a..b".

    Python looks such a name up before libpq does, and refuses to encode it.
    """
    try:
        yield
    except UnicodeError as error:
        raise ConfigError(f"no host has such a name: {error}", hint="Correct the host.") from error


def class_of(sqlstate: str | None) -> type[BrokerError]:
    """Return the class of errors with a SQLSTATE."""
    if sqlstate is None:
        return BrokerError
    for length in (5, 2):
        found = _BY_SQLSTATE.get(sqlstate[:length])
        if found is not None:
            return found
    return BrokerError
