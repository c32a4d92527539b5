"""By which methods a worker logs in at other brokers."""

from __future__ import annotations

import os

from pgps.errors import ConfigError

__all__ = ["METHODS", "allowed_methods", "methods"]

# As libpq's require_auth names them. With the first four nobody is told a password: `none` is trust, peer and
# certificates. Behind an answer to md5 a password is found by fast guessing, and oauth asks a person.
METHODS = ("scram-sha-256", "gss", "sspi", "none", "md5", "password", "oauth")
_QUIET = frozenset(METHODS[:4])


def methods(text: str) -> frozenset[str]:
    """Return the methods that a value of require_auth allows: those that it names, or all but `!those`.

    An empty text allows all. Raises ConfigError for one that libpq would not take.
    """
    words = [word.strip() for word in text.split(",")] if text.strip() else []
    named = {word.removeprefix("!") for word in words}
    but = {word.startswith("!") for word in words}
    if unknown := named - set(METHODS):
        raise ConfigError(f'there is no method "{min(unknown)}" to log in', hint=f"Choose among {', '.join(METHODS)}.")
    if but == {True, False}:
        raise ConfigError(f'"{text}" has methods with and without "!"', hint="Name those that are allowed.")
    return frozenset(named if but == {False} else set(METHODS) - named)


def allowed_methods(link_auth: str) -> frozenset[str]:
    """Return by which methods a worker may log in elsewhere; "any" is all of them, "" the default.

    By default libpq's PGREQUIREAUTH, which holds for the worker's own broker, too, narrows it further.
    """
    if link_auth == "any":
        return frozenset(METHODS)
    return methods(link_auth) if link_auth else _QUIET & methods(os.environ.get("PGREQUIREAUTH", ""))
