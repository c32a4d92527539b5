"""Networks whose brokers were put back to an older state, resumed or copied: no message is lost for the number it has.

A batch of the life that was lost is forged: with the mark of a message that the sender does not know.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

from tests.fix_broker import call, column, refused, rows, value
from tests.fix_db import Connect
from tests.links.conftest import brokers, copied  # noqa: F401 - fixtures
from tests.links.rig import Broker
from tests.sql.spools.test_long_haul import Brokers, Haul, contents, dispatch, waiting
from tests.sql.spools.test_network_rights import message

LOST = "1:999999999:1.5"


class Ends:
    """Broker norway, and a contact point of its network "sweden", which have a connection."""

    def __init__(self, norway: Broker, sif: Broker, place: int = 1) -> None:
        self.norway, self.sif = norway, sif
        self.haul = Haul(norway.admin, sif.admin, place)

    def spool(self, *messages: int) -> None:
        for n in messages:
            call(self.norway.admin, "spool", "checker", 1, str(n), network="sweden")
        dispatch(self.norway.admin)

    def lost(self, after: int, *messages: int) -> None:
        """Let the contact point take what norway has sent in a life of which it knows nothing."""
        me = self.norway.identity()
        batch = {"broker": me["broker"], "epoch": me["epoch"], "name": "norway", "network": "sweden", "network_id": 1}
        told = [message(message=n) for n in messages]
        upto = after + len(messages)
        batch |= {"after": after, "upto": upto, "messages": told, "mark": LOST}
        assert self.haul.take(batch) == upto
        dispatch(self.sif.admin)

    def resume(self) -> None:
        call(self.norway.admin, "resume_links", "restored")
        assert self.haul.open()
        self.haul.carry()

    @property
    def messages(self) -> list[int]:
        return [found for _, found in contents(self.sif.admin)]


@pytest.fixture
def ends(brokers: Brokers) -> Ends:  # noqa: F811
    norway, sif = brokers(2)
    call(norway.admin, "create_network", "sweden", [sif.dsn])
    return Ends(norway, sif)


def test_what_a_sender_that_was_resumed_had_sent_and_not_noted_does_not_arrive_again(ends: Ends) -> None:
    assert ends.haul.open()
    ends.spool(1, 2, 3)
    batch = ends.haul.next()
    ends.haul.take(batch)
    # The sender dies here, and its place is taken by a standby that has all of it.
    ends.spool(4)
    ends.resume()
    assert ends.messages == [1, 2, 3, 4]
    assert waiting(ends.norway.admin) == 0
    # A worker of the former life was stopped meanwhile, and goes on.
    with refused("55000", "epoch 1, and was in"):
        ends.haul.take(batch)
    assert ends.messages == [1, 2, 3, 4]


def test_a_batch_of_the_former_life_that_comes_after_the_first_look_of_the_new_one_is_refused(ends: Ends) -> None:
    assert ends.haul.open()
    ends.spool(1, 2, 3)
    batch = ends.haul.next()
    call(ends.norway.admin, "resume_links", "restored")
    assert ends.haul.open()
    with refused("55000", "former life"):
        ends.haul.take(batch)
    ends.haul.carry()
    assert ends.messages == [1, 2, 3]


@pytest.mark.parametrize("noted", [0, 2])
def test_a_message_with_the_number_of_one_that_was_lost_is_not_taken_for_it(ends: Ends, noted: int) -> None:
    assert ends.haul.open()
    ends.spool(*range(1, noted + 1))
    ends.haul.carry()
    ends.lost(noted, *range(noted + 1, 6))
    ends.spool(*range(10 + noted, 18))
    for _ in range(2):
        with refused("55000", "another message has that number here", "resume_links"):
            ends.haul.open()
    assert waiting(ends.norway.admin) == 8 - noted
    ends.resume()
    assert ends.messages == [*range(1, 6), *range(10 + noted, 18)]
    # And so it goes on, also when the connection breaks.
    ends.spool(20)
    ends.haul.take(ends.haul.next())
    assert ends.haul.open()
    ends.spool(21)
    ends.haul.carry()
    assert ends.messages[-3:] == [17, 20, 21]


def test_nor_when_another_contact_point_has_got_further_meanwhile(brokers: Brokers) -> None:  # noqa: F811
    norway, sif, sigyn = brokers(3)
    call(norway.admin, "create_network", "sweden", [sif.dsn, sigyn.dsn])
    one, two = Ends(norway, sif), Ends(norway, sigyn, 2)
    for end in (one, two):
        assert end.haul.open()
    one.spool(1, 2)
    for end in (one, two):
        end.haul.carry()
    one.lost(2, 3, 4, 5)
    one.spool(*range(13, 18))
    assert two.haul.open()
    two.haul.carry()
    with refused("55000", "another message"):
        one.haul.open()
    one.resume()
    assert one.messages == [1, 2, 3, 4, 5, *range(13, 18)]
    assert two.messages == [1, 2, *range(13, 18)]


def test_what_was_sent_and_is_here_is_not_sent_again_with_what_was_lost(ends: Ends) -> None:
    assert ends.haul.open()
    ends.spool(1, 2)
    # Neither is noted; of the second batch nothing is known either.
    ends.haul.take(ends.haul.next())
    ends.lost(2, 3, 4)
    ends.spool(*range(13, 16))
    ends.resume()
    assert ends.messages == [1, 2, 3, 4, 13, 14, 15]


@pytest.mark.parametrize("is_numbered", [True, False])
def test_what_waited_does_not_arrive_again_when_it_had_been_sent_together_with_newer_messages(
    ends: Ends,
    copied: Callable[[Broker], Broker],  # noqa: F811
    is_numbered: bool,
) -> None:
    """The backup is a copy, which is made while messages wait; not all of them may have their numbers yet."""
    assert ends.haul.open()
    ends.spool(1, 2)
    ends.haul.carry()
    ends.spool(3, 4)
    if not is_numbered:
        for n in (5, 6):
            call(ends.norway.admin, "spool", "checker", 1, str(n), network="sweden")
    backup = Ends(copied(ends.norway), ends.sif)
    ends.haul.here = ends.norway.admin
    for n in (7, 8):
        call(ends.norway.admin, "spool", "other", 1, str(n), network="sweden")
    dispatch(ends.norway.admin)
    assert ends.haul.open()
    ends.haul.carry(most=5)
    before = ends.messages
    assert before == [1, 2, 3, 4, *([] if is_numbered else [5, 6])]
    # The former life is over, and nobody copies it: the broker is the same.
    call(backup.norway.admin, "resume_links", "restored")
    for _ in range(2):
        assert backup.haul.open()
        backup.haul.carry()
        assert ends.messages == before
    backup.spool(10, 11)
    backup.haul.carry()
    assert ends.messages == [*before, 10, 11]
    assert waiting(backup.norway.admin) == 0
    assert value(ends.sif.admin, "select count(*) from pgps.spooled_messages where spool = 'other'") == 2


def test_nor_when_many_batches_came_since(ends: Ends, copied: Callable[[Broker], Broker]) -> None:  # noqa: F811
    assert ends.haul.open()
    ends.spool(1, 2, 3)
    backup = Ends(copied(ends.norway), ends.sif)
    ends.haul.here = ends.norway.admin
    assert ends.haul.open()
    for n in range(4, 130):
        ends.spool(n)
        ends.haul.upto = ends.haul.take(ends.haul.next())
    ends.haul.carry()
    call(backup.norway.admin, "resume_links", "restored")
    assert backup.haul.open()
    # Of these one has the id that a message of the former life had.
    backup.spool(*range(200, 203))
    backup.haul.carry(most=2)
    assert ends.messages == [*range(1, 130), 200, 201, 202]
    # What is older than anything that is put back is forgotten.
    assert value(ends.sif.admin, "select sum(cardinality(known)) from pgps_internal.network_arrived") == 129 + 3 + 3
    rows(ends.sif.admin, "update pgps_internal.network_arrived set arrived_at = now() - interval '2 days'")
    rows(ends.sif.admin, "select pgps.reclaim()")
    assert value(ends.sif.admin, "select count(*) from pgps_internal.network_arrived") > 0
    call(ends.sif.admin, "configure", "network_memory", "1 day")
    rows(ends.sif.admin, "select pgps.reclaim()")
    assert value(ends.sif.admin, "select count(*) from pgps_internal.network_arrived") == 0


def test_a_first_batch_is_taken_once_also_when_it_ends_where_the_former_life_ended(ends: Ends) -> None:
    ends.lost(0, 1, 2, 3)
    ends.spool(11, 12, 13)
    call(ends.norway.admin, "resume_links", "restored")
    assert call(ends.norway.admin, "network_open", ends.haul.contact)
    reached = call(ends.sif.admin, "network_reached", Jsonb(call(ends.norway.admin, "network_next", ends.haul.contact)))
    batch = call(ends.norway.admin, "network_next", ends.haul.contact, reached=Jsonb(reached))
    assert [ends.haul.take(batch) for _ in range(2)] == [3, 3]
    dispatch(ends.sif.admin)
    assert ends.messages == [1, 2, 3, 11, 12, 13]


def test_what_has_expired_since_it_was_sent_is_known_by_its_mark(ends: Ends) -> None:
    assert ends.haul.open()
    ends.spool(1, 2)
    ends.haul.take(ends.haul.next())
    # As if it had expired, and its space was given back.
    rows(ends.norway.admin, "delete from pgps_internal.spool_message where seqn = 2")
    assert ends.haul.open()
    assert ends.haul.upto == 2


def test_a_contact_point_that_was_put_back_gets_again_what_is_still_here(brokers: Brokers) -> None:  # noqa: F811
    norway, sif, sigyn = brokers(3)
    call(norway.admin, "create_network", "sweden", [sif.dsn, sigyn.dsn])
    one, two = Ends(norway, sif), Ends(norway, sigyn, 2)
    for end in (one, two):
        assert end.haul.open()
    one.spool(1, 2)
    for end in (two, one):
        end.haul.carry()
    one.spool(3, 4)
    one.haul.carry()
    # As a backup has it that was made before: of 1 to 4, the other contact point still lacks 3 and 4.
    rows(sif.admin, "delete from pgps_internal.network_mark where line < 0 and upto > 0")
    assert one.haul.open()
    one.haul.carry()
    assert one.messages == [1, 2, 3, 4, 3, 4]
    assert column(sif.admin, "select gaps from pgps.network_origins") == [2]


def test_a_copy_leaves_what_waited_to_the_original(
    ends: Ends,
    copied: Callable[[Broker], Broker],  # noqa: F811
) -> None:
    ends.spool(1)
    twin = Ends(copied(ends.norway), ends.sif)
    ends.haul.here = ends.norway.admin
    assert ends.haul.open()
    ends.haul.carry()
    with refused("55000", "restored from a backup, or copied"):
        twin.haul.open()
    call(twin.norway.admin, "resume_links", "clone")
    assert twin.haul.open()
    twin.haul.carry()
    assert ends.messages == [1]
    ends.spool(2)
    twin.spool(3)
    for end in (ends, twin):
        end.haul.carry()
    assert ends.messages == [1, 2, 3]


def test_how_far_a_broker_is_nobody_else_is_told(ends: Ends, connect: Connect, role: Callable[..., str]) -> None:
    assert ends.haul.open()
    ends.spool(1)
    ends.haul.carry()
    batch = call(ends.norway.admin, "network_next", ends.haul.contact)
    with refused("42501", "does not speak for broker"):
        call(connect(role("peer", "pgps_link"), dsn=ends.sif.dsn), "network_reached", Jsonb(batch))
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        call(connect(role("nobody"), dsn=ends.sif.dsn), "network_reached", Jsonb(batch))
    for wrong in ({"after": "x"}, {"from": "x"}, {"mark": "x" * 201}, {"marks": "1:2"}, {"marks": ["1:2"]}):
        with refused("22023", "no batch"):
            call(ends.sif.admin, "network_reached", Jsonb({**batch, **wrong}))
    wrongly: list[Any] = [1, [], {"upto": "x"}]
    for said in wrongly:
        with refused("22023", "how far it is"):
            call(ends.norway.admin, "network_next", ends.haul.contact, reached=Jsonb(said))
