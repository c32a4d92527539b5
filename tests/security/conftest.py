"""Mallory: a role with a schema of its own and every function an attacker would like to see called."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import psycopg
import pytest

from tests.fix_broker import call, endpoint, make_type, quoted, rows, value
from tests.fix_db import Connect


@contextmanager
def may_fail(*classes: str) -> Iterator[None]:
    """Let an attempt fail with an error of one of these SQLSTATE classes; it may as well do nothing."""
    try:
        yield
    except psycopg.Error as error:
        if (error.sqlstate or "")[:2] not in classes:
            raise


@dataclass(frozen=True)
class Mallory:
    """A plain role that may create functions in its schema, and its connection."""

    admin: psycopg.Connection
    connection: psycopg.Connection
    role: str
    schema: str
    event_type: str

    def define(self, function: str, returns: str = "void", result: str = "", *, before: str = "") -> str:
        """Create a function that takes over if the rights it runs with allow it, then returns `result`."""
        rows(
            self.connection,
            f"""
            create or replace function {self.schema}.{function} returns {returns} language plpgsql as $body$
            begin
                {before}
                begin
                    execute 'alter role {quoted(self.role)} superuser';
                exception when insufficient_privilege then null;
                end;
                return {result};
            end
            $body$
            """,
        )
        return f"{self.schema}.{function.partition('(')[0]}"

    def shadow(self) -> None:
        """Put traps into the schema, which internal code would step into on a foreign search_path."""
        for signature, returns, result in _SHADOWS:
            self.define(signature, returns, result)
        for operator, operand, function in _OPERATORS:
            rows(
                self.connection,
                f"create operator {self.schema}.{operator} "
                f"(leftarg = {operand}, rightarg = {operand}, function = {self.schema}.{function})",
            )

    def has_won(self) -> bool:
        """Tell whether the role has become a superuser."""
        return bool(value(self.admin, "select rolsuper from pg_roles where rolname = %s", [self.role]))

    def callback(self, name: str, body: str) -> str:
        """Create a callback whose body is PL/pgSQL with the event in $1."""
        rows(
            self.connection,
            f"create or replace function {self.schema}.{name}({endpoint(self.event_type)}) returns void "
            f"language plpgsql as $body$ begin {body} end $body$",
        )
        return f"{self.schema}.{name}"

    def subscribe(self, name: str, **options: object) -> str:
        call(self.connection, "subscribe", name, quoted(self.event_type), **options)
        return name


_SHADOWS = [
    ("pg_advisory_unlock(integer, integer)", "boolean", "true"),
    ("cardinality(anyarray)", "integer", "1"),
    ("unnest(anyarray)", "integer", "1"),
    ("set_config(text, text, boolean)", "text", "''"),
    ("format(text, variadic text[])", "text", "''"),
    ("isempty(int8multirange)", "boolean", "false"),
    ("minus(integer, integer)", "integer", "1000"),
    ("same(text, text)", "boolean", "true"),
    ("greater(integer, integer)", "boolean", "true"),
]
_OPERATORS = [("-", "integer", "minus"), ("=", "text", "same"), (">", "integer", "greater")]


@pytest.fixture
def _no_hurry(_cleaner: psycopg.Connection) -> Iterator[None]:
    """Ask filters and attributes that call functions until they have answered, however busy the machine is.

    What takes some seconds is left to a worker, and there is none; or its composite event is suspended.
    """
    before = value(_cleaner, "select value from pgps.settings where name = 'dispatch_lane_timeout'")
    call(_cleaner, "configure", "dispatch_lane_timeout", "1 hour")
    yield
    call(_cleaner, "configure", "dispatch_lane_timeout", before)


@pytest.fixture
def mallory(
    admin: psycopg.Connection, connect: Connect, role: Callable[..., str], name: Callable[..., str], _no_hurry: None
) -> Mallory:
    """A plain role, and an event type that everybody may publish and subscribe to."""
    who = role("mallory")
    schema = quoted(who + "_s")
    event_type = name()
    make_type(admin, event_type, "n integer, word text")
    rows(admin, f"create schema {schema} authorization {quoted(who)}")
    rows(admin, f"grant usage on schema {schema} to public")
    return Mallory(admin, connect(who), who, schema, event_type)
