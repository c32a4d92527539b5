"""What a neighbour says of its own origins counts for more than what others say: nobody can take them over."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from tests.fix_broker import call, make_type, publish, refused, rows, value
from tests.links.horizon_stage import Scene, wants_all
from tests.links.peer import Item, Origin, Peer
from tests.links.rig import Broker

Brokers = Callable[[int], list[Broker]]
FAR = 2**62


class Claims(Scene):
    """Broker b is a neighbour, and c says that it has a path to b."""

    def __init__(self, broker: Broker, stack: ExitStack) -> None:
        super().__init__(broker, stack)
        self.x = Origin("b", self.b.broker)
        make_type(broker.admin, "tock")

    def veiled(self, name: str) -> str:
        return hashlib.md5(f"{self.b.broker}{name}".encode(), usedforsecurity=False).hexdigest()[:16]

    def own(self, *types: str, withheld: tuple[str, ...] | None = (), epoch: int = 1) -> Item:
        """What b says of itself; withheld None: as a broker that does not say."""
        body = {"broker": self.b.broker, "epoch": epoch, "name": "b", "path": [self.b.broker], "cost": 0}
        told = {} if withheld is None else {"withheld": [self.veiled(name) for name in withheld]}
        return self.b.message("ad", **body, types=types, **told)

    def claim(self, *types: str, epoch: int = 1) -> Item:
        """What c says of b."""
        ad = self.c.ad(self.x, types=types)
        return {**ad, "body": ad["body"] | {"epoch": epoch}}

    def parent(self, epoch: int = 1) -> str | None:
        found: str | None = value(
            self.here.admin,
            "select n.name from pgps_internal.origin o left join pgps_internal.neighbour n on n.neighbour_id = o.parent"
            f" where o.broker_id = '{self.b.broker}' and o.epoch = {epoch}",
        )
        return found

    def hear(self) -> None:
        for peer in (self.b, self.c, self.b, self.c):
            if not peer.hears.closed:
                peer.hear()

    def in_force(self, peer: Peer, since: int) -> int:
        """Let a peer confirm the filters; return the attachment."""
        one = self.number(peer)
        keys = {item["body"]["key"] for item in peer.all_heard if item["kind"] == "sub"}
        peer.say(peer.data(self.x, one, 0, since), *(peer.active(self.x, key, one, since) for key in keys))
        return one


@pytest.fixture
def s(brokers: Brokers) -> Iterator[Claims]:
    with ExitStack() as stack:
        yield Claims(brokers(1)[0], stack)


def test_who_claims_more_types_of_a_neighbour_is_not_believed(s: Claims) -> None:
    s.subscribe()
    call(s.here.admin, "subscribe", "tocks", "tock", scope="global")
    s.b.say(s.own("tick"))
    s.c.say(s.claim("tick", "tock"))
    s.hear()
    assert s.parent() == "b"
    one = s.in_force(s.b, 4)
    s.c.say(s.c.data(s.x, one, 4, FAR, (1, 666)))
    s.b.say(s.b.data(s.x, one, 4, 5, (1, 1)))
    assert s.got() == [1]


def test_a_claim_from_before_ends_with_its_own_word(s: Claims) -> None:
    s.b.close()
    s.subscribe()
    call(s.here.admin, "subscribe", "tocks", "tock", scope="global")
    s.c.say(s.claim("tick", "tock"))
    s.hear()
    assert s.parent() == "c", "while b is away, there is no other path"
    s.in_force(s.c, 4)
    s.again(s.b)
    s.b.say(s.own("tick"))
    s.hear()
    assert s.parent() == "b"


def test_what_it_withholds_may_come_another_way(s: Claims) -> None:
    s.subscribe()
    call(s.here.admin, "subscribe", "tocks", "tock", scope="global")
    s.b.say(s.own("tick", withheld=("tock",)))
    s.c.say(s.claim("tick", "tock"))
    s.hear()
    assert s.parent() == "c"


def test_a_broker_that_does_not_say_is_believed_as_little_as_before(s: Claims) -> None:
    s.subscribe()
    s.b.say(s.own("tick", withheld=None))
    s.c.say(s.claim("tick", "tock"))
    s.hear()
    assert s.parent() == "c"


@pytest.mark.parametrize("epoch", [9, 0])
def test_an_epoch_that_it_was_never_in_brings_nothing(s: Claims, epoch: int) -> None:
    s.subscribe()
    s.b.say(s.own("tick"))
    s.c.say(s.claim("tick", epoch=epoch))
    s.hear()
    assert s.parent(epoch) is None
    assert s.parent() == "b"


def test_an_epoch_that_was_claimed_while_it_was_away_ends(s: Claims) -> None:
    s.subscribe()
    s.b.say(s.own("tick"))
    s.hear()
    s.b.close()
    s.c.say(s.claim("tick", epoch=9))
    s.hear()
    assert s.parent(9) == "c", "it may have been restored"
    made = {"broker": s.b.broker, "epoch": 9, "events": 1, "previous": 0}
    one = int(s.c.attachment(s.x)["attachment"])
    s.c.say({"kind": "data", **made, "attachment": one, "upto": 1, "rows": ((1, 1),)})
    s.again(s.b)
    s.hear()
    assert s.parent(9) is None
    s.c.say({"kind": "data", **made, "attachment": one, "previous": 1, "upto": 2, "rows": ((2, 2),)})
    assert 2 not in s.got()


def poisoned(s: Claims, child: Peer | None = None) -> None:
    """Filters of b's events are in force from batch 4 on, and c has told of far more batches than b has."""
    s.subscribe()
    s.b.say(s.own("tick"))
    s.hear()
    one = s.in_force(s.b, 4)
    s.b.say(s.b.data(s.x, one, 4, 6, (1, 1)))
    if child is not None:
        child.say(*wants_all(s, child, "every", 6))
        child.hear()
        s.hear()
        child.hear()
    s.b.close()
    s.c.say(s.claim("tick"))
    s.hear()
    assert s.parent() == "c"
    one = s.in_force(s.c, 6)
    s.c.say(s.c.data(s.x, one, 6, FAR, (1, 666)))
    s.again(s.b)
    s.b.say(s.own("tick"))
    s.hear()


def test_batches_that_there_are_not_are_taken_back(s: Claims) -> None:
    poisoned(s)
    asked = s.b.attachment(s.x)
    assert asked["horizon"] == FAR
    s.b.say(s.b.data(s.x, asked["attachment"], FAR, 9))
    s.hear()
    again = s.b.attachment(s.x)
    assert again["horizon"] == 6
    one = again["attachment"]
    s.b.say(s.b.data(s.x, one, 6, 8, (2, 2)), s.b.data(s.x, one, 8, 10, (3, 3)))
    assert s.got() == [1, 666, 2, 3]
    (told,) = rows(s.here.admin, "select error from pgps.exceptions where event_type is null")
    assert 'neighbour "b" says that broker "b" has batches up to 9; some up to 46' in told[0]
    assert 'had come from neighbour "c"' in told[0]


def test_children_are_told_in_turn(s: Claims) -> None:
    d = s.peer("d")
    poisoned(s, d)
    (far,) = [i for i in d.hear() if i.get("upto") == FAR]
    asked = s.b.attachment(s.x)
    s.b.say(s.b.data(s.x, asked["attachment"], FAR, 9))
    s.hear()
    (back,) = [i for i in d.hear() if i["kind"] == "silence" and i["upto"] < i["previous"]]
    assert (back["upto"], back["previous"], back["attachment"]) == (9, FAR, far["attachment"])


@pytest.mark.parametrize("upto", [0, 5])
def test_who_is_no_more_than_a_path_takes_back_only_what_came_by_it(s: Claims, upto: int) -> None:
    """Or all that others had brought would come once more."""
    s.subscribe()
    s.b.say(s.own("tick"))
    s.hear()
    one = s.in_force(s.b, 4)
    s.b.say(s.b.data(s.x, one, 4, 6, (1, 1)))
    s.b.close()
    s.c.say(s.claim("tick"))
    s.hear()
    one = s.in_force(s.c, 6)
    s.c.say(s.c.data(s.x, one, 6, 8, (2, 2)), s.c.data(s.x, one, 8, upto))
    s.c.say(s.c.data(s.x, one, 8, 9, (3, 3)))
    s.hear()
    assert (s.number(s.c), s.got()) == (one, [1, 2, 3])
    s.c.say(s.c.data(s.x, one, 9, 7))
    s.hear()
    assert (s.number(s.c), s.c.attachment(s.x)["horizon"]) == (one + 1, 6), "of that it is the source"


def test_so_many_are_taken_back_and_no_more(s: Claims) -> None:
    """As gaps, whose number a neighbour can choose as well."""
    call(s.here.admin, "configure", "link_refused", "1")
    s.subscribe()
    s.b.say(s.own("tick"))
    s.hear()
    one = s.in_force(s.b, 4)
    s.b.say(s.b.data(s.x, one, 4, 6), s.b.data(s.x, one, 6, 5))
    s.hear()
    one = s.number(s.b)
    s.b.say(s.b.data(s.x, one, 4, 6))
    with refused("54000", "too many refused events"):
        s.b.say(s.b.data(s.x, one, 6, 5))


def test_a_broker_tells_who_is_ahead_of_it(s: Claims) -> None:
    """The other side: here is the broker that was spoken for."""
    admin = s.here.admin
    me = Origin("here", s.here.identity()["broker"])
    every = s.c.message("sub", key="every", filter=None, constant_types=None, environment={}, type="tick")
    publish(admin, "tick", 1)
    s.here.settle()
    epoch = s.here.identity()["epoch"]
    attach = {"broker": me.broker, "epoch": epoch, "keep": ["every"]}
    s.c.say(every, s.c.message("attach", **attach, attachment=1, horizon=FAR))
    (back,) = [i for i in s.c.hear() if i["kind"] == "silence" and i["upto"] < i["previous"]]
    assert back["upto"] < 1000
    assert back["previous"] == FAR
    s.c.say(s.c.message("attach", **attach, attachment=2, horizon=0))
    heard = s.c.hear()
    publish(admin, "tick", 2)
    heard += s.c.hear()
    assert sum(i.get("events", 0) for i in heard if i["kind"] == "data" and i["attachment"] == 2) == 2
    s.c.say(s.c.message("attach", **attach, attachment=3, horizon=0, reached=FAR))
    assert [i for i in s.c.hear() if i["kind"] == "silence" and i["upto"] < i["previous"]], "while it fetches again"


def test_a_neighbour_is_told_what_is_withheld_in_a_veil(s: Claims) -> None:
    admin = s.here.admin
    for name in ("tick", "tock"):
        call(admin, "advertise", name)
    rows(admin, "revoke select on pgps_event.tock from public, pgps_neighbour")
    s.hear()
    (ad,) = [i["body"] for i in s.b.all_heard if i["kind"] == "ad"][-1:]
    own = s.here.identity()["broker"]
    veil = hashlib.md5(f"{own}tock".encode(), usedforsecurity=False).hexdigest()[:16]
    assert (ad["types"], ad["withheld"]) == (["tick"], [veil])
