"""Who may speak for which broker at a contact point, and into which spools, and what a contact point may claim."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from psycopg.types.json import Jsonb

from pgps._resources import sql_dir
from tests.fix_broker import call, column, meanwhile, refused, rows, value
from tests.fix_db import Connect
from tests.links.conftest import brokers  # noqa: F401 - a fixture
from tests.links.rig import Broker
from tests.sql.spools.test_long_haul import Haul, contents, dispatch, waiting

Brokers = Callable[[int], list[Broker]]
Role = Callable[..., str]


class Sites:
    """Broker norway, whose network "sweden" has one contact point, and whom a role stands for there."""

    def __init__(self, norway: Broker, sif: Broker, connect: Connect, role: Role) -> None:
        self.norway, self.sif, self.connect, self.role = norway, sif, connect, role
        self.name = role("norway", "pgps_link")
        self.session = connect(self.name, dsn=sif.dsn)
        call(norway.admin, "create_network", "sweden", [sif.dsn])
        self.haul = Haul(norway.admin, self.session)

    def spool(self, *messages: int, spool: str = "checker") -> None:
        for n in messages:
            call(self.norway.admin, "spool", spool, 1, str(n), network="sweden")
        dispatch(self.norway.admin)

    def carry(self) -> None:
        """Carry all there is, and dispatch at both ends."""
        while (batch := self.haul.next())["messages"]:
            self.haul.upto = self.haul.take(batch)
        dispatch(self.sif.admin)

    def peer(self, *roles: str) -> psycopg.Connection:
        """Log in at the contact point as another broker's role, which has pgps_link and nothing else."""
        return self.connect(self.role("peer", *(roles or ("pgps_link",))), dsn=self.sif.dsn)

    def forged(self, *messages: dict[str, Any], **more: Any) -> Jsonb:
        """Return a batch in the name of norway, or of whom `more` says."""
        me = self.norway.identity()
        batch = {"broker": me["broker"], "epoch": me["epoch"], "name": "norway", "network": "sweden", "network_id": 1}
        return Jsonb(batch | {"after": 0, "upto": len(messages), "messages": list(messages)} | more)


def message(spool: str = "checker", **more: Any) -> dict[str, Any]:
    """Return a message as a broker of another network sends it."""
    told = {"spool": spool, "entry": 1, "message": "forged", "keys": None, "keywords": None, "expires": None}
    return told | {"sender": "boss", "spooler": "boss", "spooled_at": "2026-01-01 00:00+00"} | more


@pytest.fixture
def sites(brokers: Brokers, connect: Connect, role: Role) -> Sites:  # noqa: F811
    norway, sif = brokers(2)
    return Sites(norway, sif, connect, role)


def test_nobody_else_moves_the_mark_of_a_broker_so_that_it_forgets_its_messages(sites: Sites) -> None:
    assert sites.haul.open()
    sites.spool(1)
    sites.carry()
    sites.spool(2, 3)
    with refused("42501", "does not speak for broker", sites.name):
        call(sites.peer(), "network_take", sites.forged(after=10**15, upto=10**15))
    assert sites.haul.open()
    sites.carry()
    assert contents(sites.sif.admin) == [(1, 1), (2, 2), (3, 3)]


def test_a_contact_point_that_claims_what_it_was_never_handed_makes_nobody_forget(sites: Sites) -> None:
    assert sites.haul.open()
    sites.spool(1, 2)
    for claimed in (3, 10**15):
        with refused("55000", "resume_links"):
            call(sites.norway.admin, "network_next", sites.haul.contact, claimed)
    assert waiting(sites.norway.admin) == 2
    sites.carry()
    with refused("55000", "3"):
        call(sites.norway.admin, "network_next", sites.haul.contact, 3)
    assert contents(sites.sif.admin) == [(1, 1), (2, 2)]


def test_a_role_spools_from_elsewhere_only_where_it_may_spool(sites: Sites) -> None:
    sif = sites.sif.admin
    call(sif, "create_spool", "checker", max_messages=1)
    peer = sites.peer()
    own = {"broker": str(uuid4()), "name": "evil", "network_id": 7}
    with refused("42501", "may not spool into spool", "grant_spool", peer.info.user):
        call(peer, "network_take", sites.forged(message(), **own))
    # Not even beside messages for one that it makes.
    with refused("42501", "checker"):
        call(peer, "network_take", sites.forged(message("fresh"), message(), **own))
    dispatch(sif)
    assert contents(sif) == []
    call(sif, "grant_spool", "checker", "spool", peer.info.user)
    assert call(peer, "network_take", sites.forged(message(), **own)) == 1
    dispatch(sif)
    # Who the sender is the other broker says; that it was that broker's word, the spooler.
    found = rows(sif, "select message, sender, spooler from pgps.spooled_messages")
    assert found == [("forged", "boss", peer.info.user)]


def test_a_spool_that_arriving_messages_make_is_their_roles_and_no_other_ones(sites: Sites) -> None:
    assert sites.haul.open()
    sites.spool(1)
    sites.carry()
    sites.spool(2)
    sites.carry()
    assert contents(sites.sif.admin) == [(1, 1), (2, 2)]
    sender = value(sites.norway.admin, "select current_user")
    found = rows(sites.sif.admin, "select distinct sender, spooler from pgps.spooled_messages")
    assert found == [(sender, sites.name)]
    with refused("42501", "checker"):
        call(sites.peer(), "network_take", sites.forged(message(), broker=str(uuid4())))
    # It may spool there, and read nothing.
    assert rows(sites.session, "table pgps.spooled_messages") == []
    assert call(sites.session, "spool", "checker", 1, "3") > 0


def test_no_other_role_takes_further_networks_of_a_broker_that_somebody_speaks_for(sites: Sites) -> None:
    assert sites.haul.open()
    peer = sites.peer()
    with refused("42501", "does not speak for broker"):
        call(peer, "network_take", sites.forged(network_id=2))
    assert call(sites.session, "network_take", sites.forged(network_id=2)) == 0
    # Who is a member of that role, and an administrator, may speak for it.
    rows(sites.sif.admin, f'grant "{sites.name}" to "{peer.info.user}"')
    assert call(peer, "network_take", sites.forged()) == 0
    boss = sites.peer("pgps_admin")
    assert call(boss, "network_take", sites.forged()) == 0


def test_an_administrator_says_that_another_role_speaks_for_a_broker(sites: Sites) -> None:
    assert sites.haul.open()
    sites.spool(1)
    peer = sites.peer()
    broker = sites.norway.identity()["broker"]
    seen = "select name, role::text from pgps.network_origins"
    assert rows(sites.sif.admin, seen) == [(sites.norway.name, sites.name)]
    with refused("42501"):
        call(peer, "set_network_role", broker, peer.info.user)
    call(sites.sif.admin, "set_network_role", broker, peer.info.user)
    assert rows(sites.sif.admin, seen) == [(sites.norway.name, peer.info.user)]
    with refused("42501", "set_network_role"):
        sites.haul.open()
    sites.haul.there = peer
    assert sites.haul.open()
    sites.carry()
    assert contents(sites.sif.admin) == [(1, 1)]
    for unknown in ((str(uuid4()), peer.info.user), (broker, "nobody_at_all")):
        with refused("42704"):
            call(sites.sif.admin, "set_network_role", *unknown)


def test_what_came_before_roles_were_remembered_is_the_first_ones(sites: Sites) -> None:
    assert sites.haul.open()
    rows(sites.sif.admin, "update pgps_internal.network_origin set role = null")
    assert sites.haul.open()
    with refused("42501", "does not speak for broker"):
        call(sites.peer(), "network_take", sites.forged())


def test_one_role_makes_up_so_many_networks_and_spools_and_no_more(sites: Sites) -> None:
    call(sites.sif.admin, "configure", "link_networks", "2")
    call(sites.sif.admin, "configure", "link_spools", "3")
    peer = sites.peer()
    one, two, three = ({"broker": str(uuid4())} for _ in range(3))
    assert call(peer, "network_take", sites.forged(message("a"), message("b"), **one)) == 2
    assert call(peer, "network_take", sites.forged(message("c"), **two)) == 1
    with refused("54000", "link_networks", "2 are allowed"):
        call(peer, "network_take", sites.forged(message("a"), **three))
    with refused("54000", "link_spools", "3 are allowed"):
        call(peer, "network_take", sites.forged(message("d"), **one, after=2, upto=3))
    assert call(peer, "network_take", sites.forged(message("a"), **one, after=2, upto=3)) == 3
    # Others are heard.
    assert sites.haul.open()
    sites.spool(1)
    sites.carry()
    made = column(sites.sif.admin, "select name from pgps.spools where last_seqn > 0 order by 1")
    assert made == ["a", "b", "c", "checker"]


def test_who_makes_a_spool_and_leaves_the_transaction_open_holds_up_nobody(sites: Sites) -> None:
    peer = sites.peer()
    rows(peer, "begin")
    call(peer, "network_take", sites.forged(message(), broker=str(uuid4())))
    call(sites.norway.admin, "spool", "checker", 1, "1", network="sweden")
    dispatch(sites.norway.admin)
    boss = sites.connect(dsn=sites.sif.dsn)

    def end() -> None:
        (told,) = call(boss, "end_stuck_links", "0 seconds")
        assert peer.info.user in told

    # It waits to enter its origin, which is new.
    def carry() -> None:
        assert sites.haul.open()
        sites.carry()

    with meanwhile(boss, sites.session, carry):
        end()
    assert contents(sites.sif.admin) == [(1, 1)]


def test_a_network_goes_on_after_an_upgrade_with_the_rights_that_its_role_had(sites: Sites) -> None:
    sif = sites.sif.admin
    call(sif, "create_spool", "checker")
    peer = sites.peer()
    assert sites.haul.open()
    rows(sif, "alter table pgps_internal.network_origin drop column role cascade")
    rows(sif, (sql_dir() / "schema" / "0039_voices.sql").read_text())
    rows(sif, "update pgps_internal.network_origin set role = null")
    later = sites.connect(sites.role("later", "pgps_link"), dsn=sites.sif.dsn)
    sites.spool(1)
    sites.carry()
    assert contents(sif) == [(1, 1)]
    with refused("42501", "does not speak for broker"):
        call(peer, "network_take", sites.forged())
    own = {"broker": str(uuid4())}
    assert call(peer, "network_take", sites.forged(message(), **own)) == 1, "as it could before"
    call(sif, "revoke_spool", "checker", "spool", peer.info.user)
    with refused("42501", "may not spool"):
        call(peer, "network_take", sites.forged(message(), **own, after=1, upto=2))
    with refused("42501", "may not spool"):
        call(later, "network_take", sites.forged(message(), broker=str(uuid4())))


def test_times_that_no_clock_shows_fail_nobody_who_reads_them(sites: Sites) -> None:
    told = [message(spooled_at=at) for at in ("infinity", "-infinity", "290000-01-01", "4000-01-01 BC")]
    assert call(sites.peer(), "network_take", sites.forged(*told, broker=str(uuid4()))) == 4
    dispatch(sites.sif.admin)
    query = "select spooled_at from pgps.spooled_messages order by seqn"
    assert [at.year for at in column(sites.sif.admin, query)] == [9999, 1, 9999, 1]
