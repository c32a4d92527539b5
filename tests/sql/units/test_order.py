"""New conversations are as old as their first unit of work, whatever has become of that one; who may receive by id."""

from __future__ import annotations

from collections.abc import Callable

import psycopg
import pytest
from psycopg import errors

from tests.fix_broker import call, value
from tests.fix_clock import Clock
from tests.fix_units import Party, make_service
from tests.sql.units.conftest import SERVICE
from tests.sql.units.test_ledgers import serve_all, skip_to_next_segment


def cancel(client: Party, server: Party, uow_id: str, clock: Clock) -> None:
    """Let its sender cancel the unit that waits first."""
    client.sync("cancel", uow_id)


def refuse(client: Party, server: Party, uow_id: str, clock: Clock) -> None:
    """Let a server cancel it."""
    row = server.receive("new")
    assert row is not None
    assert row["uow_id"] == uow_id
    server.sync("cancel")


def time_out(client: Party, server: Party, uow_id: str, clock: Clock) -> None:
    """Let its lifetime end."""
    clock.advance("2 hours")


ENDS = [cancel, refuse, time_out]


@pytest.mark.parametrize("end", ENDS, ids=lambda end: end.__name__)
@pytest.mark.parametrize("is_over_before", [False, True])
def test_a_conversation_keeps_its_place_when_its_first_unit_is_over(
    broker: psycopg.Connection, party: Callable[..., Party], clock: Clock,
    end: Callable[[Party, Party, str, Clock], None], is_over_before: bool,
) -> None:  # fmt: skip
    """Its second unit may have been committed before that, or come later: when the low mark has passed the first."""
    client, server = party("c"), party("s").serve(SERVICE)
    for n in range(20):
        client.send(f"before {n}", to_service=SERVICE, option="commit")
    assert len(serve_all(server)) == 20
    first = client.send("1", to_service=SERVICE, option="commit", lifetime="1 hour")
    if is_over_before:
        end(client, server, first["uow_id"], clock)
    waiting = [client.request(SERVICE, f"other {n}")["conversation"] for n in range(30)]
    if is_over_before:
        # Servers that receive and commit the others move the mark on.
        for n in range(20):
            assert server.text("new") == f"other {n}"
            server.sync("commit")
        waiting = waiting[20:]
        # What is sent in it has its place, not the one of its own commit.
        second = client.send("2", first["conversation"], option="commit")
        assert second["committed_at"] == first["committed_at"]
    else:
        client.send("2", first["conversation"], option="commit")
        client.send("3", first["conversation"], option="commit")
        end(client, server, first["uow_id"], clock)
    rows = [server.receive("new") for _ in range(3)]
    assert [row and row["conversation"] for row in rows] == [first["conversation"], *waiting[:2]]
    assert rows[0] is not None
    assert (bytes(rows[0]["message"]), rows[0]["committed_at"]) == (b"2", first["committed_at"])


def test_the_place_is_kept_across_services_and_segments(
    broker: psycopg.Connection, party: Callable[..., Party], clock: Clock
) -> None:
    """A server of two services, whose queues it looks at one by one; and a segment is reclaimed meanwhile."""
    other = make_service(broker, "shop/orders/other", deferred=True)
    client, server = party("c"), party("s").serve(SERVICE).serve(other)
    first = client.request(SERVICE, "1", lifetime="1 minute")
    client.sync("cancel", first["uow_id"])
    for _ in range(2):
        client.request(other, "other")
        skip_to_next_segment(broker)
    for _ in range(3):
        call(broker, "reclaim")
    assert value(broker, "select count(*) from pgps_internal.unit_0") == 0
    second = client.send("2", first["conversation"], option="commit")
    assert second["committed_at"] == first["committed_at"]
    assert [server.text("new") for _ in range(4)] == ["2", "other", "other", None]


def test_units_at_one_place_are_received_one_by_one(broker: psycopg.Connection, party: Callable[..., Party]) -> None:
    """The low mark does not pass what waits at the place of a unit that is over; late commits are found there."""
    client, late = party("c"), party("l", autocommit=False)
    one, two = party("one").serve(SERVICE), party("two").serve(SERVICE)
    mine = client.request(SERVICE, "1")
    client.send("2", mine["conversation"], option="commit")
    theirs = late.request(SERVICE, "late 1")
    late.connection.commit()
    late.sync("cancel", theirs["uow_id"])
    late.connection.commit()
    late.send("late 2", theirs["conversation"], option="commit")
    client.sync("cancel", mine["uow_id"])
    assert one.text("new") == "2"
    for n in range(60):
        client.send(str(n), to_service=SERVICE, option="commit")
    assert serve_all(two) == [str(n) for n in range(60)]
    late.connection.commit()
    client.send("more", to_service=SERVICE, option="commit")
    assert serve_all(two) == ["late 2", "more"]
    one.sync("backout")
    assert serve_all(two) == ["2"]
    client.send("3", mine["conversation"], option="commit")
    assert [one.receive("any"), two.text("old")] == [None, "3"]


def test_the_low_mark_is_not_moved_past_what_waits_at_its_place(
    broker: psycopg.Connection, party: Callable[..., Party]
) -> None:
    """What is received by the call that moves the mark, and given back, has the place of a unit that is over."""
    client, holder, server = party("c"), party("h").serve(SERVICE), party("s").serve(SERVICE)
    client.send("held", to_service=SERVICE, option="commit")
    assert holder.text("new") == "held"
    for n in range(120):
        client.sync("cancel", client.send(str(n), to_service=SERVICE, option="commit")["uow_id"])
    mine = client.request(SERVICE, "1")
    client.send("2", mine["conversation"], option="commit")
    client.sync("cancel", mine["uow_id"])
    assert value(broker, "select count(*) from pgps_internal.queue_low") == 0
    assert server.text("new") == "2"
    assert value(broker, "select count(*) from pgps_internal.queue_low") == 1
    server.sync("backout")
    assert [server.text("new"), server.text("new")] == ["2", None]
    holder.sync("backout")
    assert server.text("new") == "held"


def test_a_server_that_has_deregistered_ends_what_it_has_begun(
    broker: psycopg.Connection, party: Callable[..., Party]
) -> None:
    """It holds a unit, or is bound to a conversation: both stay its own. New ones are for who is registered."""
    client, server = party("c"), party("s").serve(SERVICE)
    sent = client.request(SERVICE, "1", "2")
    assert server.text("new") == "1"
    server.call("deregister_service", *SERVICE.split("/"))
    assert server.text(sent["conversation"]) == "2"
    ended = server.receive(sent["conversation"])
    assert ended is not None
    assert ended["code"] == "00740301"
    server.send("answer", sent["conversation"])
    assert [row["status"] for row in server.both()] == ["PROCESSED", "ACCEPTED"]
    client.send("3", sent["conversation"], option="commit")
    assert server.text(sent["conversation"]) == "3"
    server.sync("backout")
    assert server.text("old") == "3"
    server.sync("commit")
    unbound = client.request(SERVICE, "4")["conversation"]
    with pytest.raises(errors.InsufficientPrivilege, match="somebody else") as refused:
        server.receive(unbound)
    assert "pgps.register_service" in str(refused.value.diag.message_hint)
    with pytest.raises(errors.ObjectNotInPrerequisiteState, match="not registered"):
        server.receive("new")
    assert server.serve(SERVICE).text(unbound) == "4"
    # Given back, and not registered any more: it is nobody's.
    server.call("deregister_service", *SERVICE.split("/"))
    server.sync("backout")
    with pytest.raises(errors.InsufficientPrivilege):
        server.receive(unbound)
