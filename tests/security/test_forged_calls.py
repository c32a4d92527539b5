"""pgps._call is open to everybody: what stands behind it believes nothing but who calls."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

from tests.fix_broker import call, column, endpoint, publish, queue, quoted, refused, rows, value
from tests.fix_db import Connect
from tests.security.conftest import Mallory, may_fail

FOR_ADMINISTRATORS: dict[str, dict[str, Any]] = {
    "prepare_type": {"name": "x"},
    "build_type": {"name": "x", "visibility": "deferred", "reliability": "guaranteed", "handler": "all"},
    "alter_type": {"drop": "n"},
    "apply_attribute": {"drop": "n"},
    "drop_type": {"cascade": True},
    "alter_queue": {"auditable": True},
    "create_policy": {"role": "pgps_admin", "using_expression": "true"},
    "drop_policy": {},
    "configure": {"name": "lease", "value": "1 second"},
    "create_link": {"conninfo": "host=x", "direction": "both"},
    "alter_link": {"enabled": False},
    "drop_link": {},
    "resume_links": {"as": "clone"},
    "resync_link": {},
}

SENSELESS: list[dict[str, Any]] = [
    {},
    {"name": None},
    {"name": [], "event_type": {}},
    {"event_type": "';--", "subscription": '"', "name": ""},
]

# They only look.
_LOOKS = {"count_exceptions", "find_exceptions", "find_queued", "find_subscriptions", "totals"}


def forge(connection: psycopg.Connection, verb: str, **args: Any) -> Any:
    return value(connection, "select pgps._call(%s, %s)", [verb, Jsonb(args)])


def verbs(connection: psycopg.Connection) -> list[str]:
    """Return every verb that can be called."""
    return column(
        connection,
        "select substr(proname, 4) from pg_proc where pronamespace = 'pgps_internal'::regnamespace "
        "and proname like 'do\\_%' and proargtypes[0] = 'name'::regtype and proargtypes[1] = 'jsonb'::regtype",
    )


def subscription(mallory: Mallory, name: str, **forged: Any) -> dict[str, Any]:
    """Return what pgps.subscribe hands in, some of it forged."""
    args = {
        "name": name, "types": {"pattern": False, "event_type": mallory.event_type, "types": [mallory.event_type]},
        "filter": None, "constant_types": None, "scope": "local", "callback": None, "execute": None, "priority": 0,
        "start": "now", "max_attempts": 5, "handler": None, "schemas": ["public"],
    }  # fmt: skip
    return args | forged


@pytest.mark.parametrize("verb", FOR_ADMINISTRATORS)
def test_what_is_for_administrators_is_refused_to_a_plain_role(mallory: Mallory, verb: str) -> None:
    args: dict[str, Any] = {"name": mallory.event_type, "event_type": mallory.event_type}
    args |= {"queue": f"{mallory.event_type}_in"} | FOR_ADMINISTRATORS[verb]
    with refused("42501", mallory.role):
        forge(mallory.connection, verb, **args)


def test_every_verb_withstands_missing_and_senseless_arguments(mallory: Mallory) -> None:
    before = value(mallory.admin, "select count(*) from pgps_internal.subscription")
    for verb in verbs(mallory.admin):
        for args in SENSELESS:
            if verb in _LOOKS:
                # Without arguments it shows all that one may see: to this role, nothing.
                with contextlib.suppress(psycopg.DataError, psycopg.ProgrammingError):
                    seen = forge(mallory.connection, verb, **args)
                    assert not seen or (verb == "totals" and not any(seen.values()))
                continue
            with pytest.raises(psycopg.Error) as caught:
                forge(mallory.connection, verb, **args)
            assert (caught.value.sqlstate or "XX")[:2] not in ("XX", "58"), (verb, args, caught.value)
    assert value(mallory.admin, "select count(*) from pgps_internal.subscription") == before


@pytest.mark.parametrize("kind", ["execute", "filter"])
def test_a_forged_search_path_is_a_list_of_names(mallory: Mallory, name: Callable[..., str], kind: str) -> None:
    text = f"pg_catalog as 'begin end'; alter role {quoted(mallory.role)} superuser; --"
    for number, schemas in enumerate([[text], text, {"a": text}, ["$user", '"', "'", ""]]):
        forged: dict[str, Any] = {"schemas": schemas, "search_path": text}
        if kind == "execute":
            function = mallory.callback("f", "null;").split(".")[1]
            forged |= {"execute": function, "callback": {"function": f"{mallory.schema}.{function}"}}
        else:
            forged |= {"filter": "exists (select) and '$x$' <> 'y'"}
        forge(mallory.connection, "subscribe", **subscription(mallory, f"{name('s')}_{number}", **forged))
        assert not mallory.has_won()
    assert not mallory.has_won()


@pytest.mark.parametrize(
    "type_name",
    ["integer --", "integer /* x */", "integer --)", "text", "regrole", "integer[]", "pg_catalog.xml", "no", "int4; x"],
)
def test_forged_types_of_constants_do_no_harm(mallory: Mallory, name: Callable[..., str], type_name: str) -> None:
    found = name("s")
    args = subscription(mallory, found, filter="n = 1", constant_types=[type_name])
    with may_fail("42", "22", "0A"):
        forge(mallory.connection, "subscribe", **args)
    other = mallory.subscribe(name("s"), filter="n = 2")
    publish(mallory.admin, mallory.event_type, 1, 2)
    rows(mallory.admin, "select pgps.dispatch()")
    assert [p["n"] for p in column(mallory.connection, "select payload from pgps.receive(%s)", [other])] == [2]


def test_a_forged_callback_is_code_of_its_owner(mallory: Mallory, name: Callable[..., str]) -> None:
    mallory.define("win()")
    code = f"{mallory.schema}.win(); perform pg_sleep"
    args = subscription(mallory, name("s"), execute=code, callback={"function": code})
    with may_fail("42"):
        forge(mallory.connection, "subscribe", **args)
    publish(mallory.admin, mallory.event_type, 1)
    rows(mallory.admin, "select pgps.dispatch()")
    rows(mallory.admin, "call pgps.run_subscribers()")
    assert not mallory.has_won()


def test_a_filter_that_is_no_expression_is_refused_behind_the_way_in_too(
    mallory: Mallory, name: Callable[..., str]
) -> None:
    for text in ("true); select 1; --", "true; select 1", "n ="):
        with refused("42601"):
            forge(mallory.connection, "subscribe", **subscription(mallory, name("s"), filter=text))


def test_forged_event_types_do_not_replace_the_right_to_subscribe(mallory: Mallory, name: Callable[..., str]) -> None:
    secret = name("secret")
    call(mallory.admin, "create_event_type", secret, "n integer")
    call(mallory.admin, "advertise", secret)
    for pattern in (False, True, None):
        types = {"pattern": pattern, "event_type": secret, "types": [secret]}
        with pytest.raises(psycopg.Error):
            forge(mallory.connection, "subscribe", **subscription(mallory, name("s"), types=types))
    everything = name("s")
    types = {"pattern": True, "event_type": secret + "*", "types": [secret]}
    forge(mallory.connection, "subscribe", **subscription(mallory, everything, types=types))
    publish(mallory.admin, secret, 1)
    rows(mallory.admin, "select pgps.dispatch()")
    assert column(mallory.connection, "select payload from pgps.receive(%s)", [everything]) == []


def test_the_second_half_of_a_rule_is_for_its_owner_and_its_search_path_is_names(
    mallory: Mallory, name: Callable[..., str]
) -> None:
    table, rule = name("t"), name("r")
    rows(mallory.admin, f"create table public.{table} (n integer)")
    call(mallory.admin, "create_rule", rule, f"public.{table}", "insert", quoted(mallory.event_type), ["new.n"])
    with pytest.raises(psycopg.Error):
        forge(mallory.connection, "finish_rule", name=rule)
    rows(mallory.connection, f"create table {mallory.schema}.t (n integer)")
    own, text = name("r"), f"pg_catalog as 'begin end'; alter role {quoted(mallory.role)} superuser; --"
    oid = value(mallory.connection, f"select '{mallory.schema}.t'::regclass::oid::text")
    args = {"name": own, "table_name": oid, "operations": "insert", "event_type": quoted(mallory.event_type)}
    forge(mallory.connection, "create_rule", **args, attributes=["new.n"], condition=None, run_as="owner")
    forge(mallory.connection, "finish_rule", name=own, search_path=text, schemas=[text])
    assert not mallory.has_won()
    with refused("42P01"):
        args |= {"table_name": "4000000000", "name": name("r")}
        forge(mallory.connection, "create_rule", **args, attributes=["new.n"], condition=None, run_as="owner")


def test_who_may_not_publish_cannot_settle_a_publication(
    mallory: Mallory, connect: Connect, role: Callable[..., str], name: Callable[..., str]
) -> None:
    secret = name("secret")
    call(mallory.admin, "create_event_type", secret, "n integer")
    args = {"event_type": secret, "producer": "p", "producer_seq": 1}
    for verb in ("publication", "published", "advertise", "publish_immediately"):
        with refused("42501", secret):
            forge(mallory.connection, verb, **args, payload=[{"n": 1}])
    assert rows(mallory.admin, f"select * from {queue(secret, 'in')}") == []
    assert endpoint(secret)


def test_the_caller_cannot_be_given(mallory: Mallory) -> None:
    with refused("42501"):
        rows(mallory.connection, "insert into pgps_entry.calls (verb, args, caller) values ('x', '{}', 'postgres')")


def test_inside_a_definers_function_the_caller_is_its_owner(
    mallory: Mallory, connect: Connect, role: Callable[..., str], name: Callable[..., str]
) -> None:
    found, other = name("s"), connect(role("other"))
    mallory.subscribe(found)
    function = f"{mallory.schema}.stop"
    rows(
        mallory.connection,
        f"create function {function}() returns void language sql security definer as "
        f"$$ select pgps.pause('{found}') $$",
    )
    with refused("42501", found):
        call(other, "pause", found)
    rows(other, f"select {function}()")
    assert value(mallory.admin, "select state from pgps.subscriptions where name = %s", [found]) == "paused"
