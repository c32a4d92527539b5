"""Services at another broker, with real links and workers, while servers, workers and connections are killed."""

from __future__ import annotations

import os
import random
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

from pgps.client import Client, Message
from tests.fix_broker import call, rows, value
from tests.fix_db import wait_until
from tests.fix_units import Party, make_service
from tests.fix_worker import Workers, workers
from tests.links.fleet import Fleet, Member, Staffed, make_fleet

__all__ = ["workers"]

SERVICE = "shop/orders/book"
SEED = int(os.environ.get("PGPS_LINK_SEED", "1"))
CLIENTS, SERVERS, CONVERSATIONS, REQUESTS = 4, 3, 2, 4
# What a kill does to a program, and what a program that comes back too early hears.
LOST = (psycopg.OperationalError, psycopg.errors.ObjectInUse)
TOO_EARLY = psycopg.errors.ObjectNotInPrerequisiteState


@pytest.fixture
def fleet(embedded_home: Path) -> Iterator[Fleet]:
    made = make_fleet(embedded_home, f"units-{os.environ.get('PYTEST_XDIST_WORKER', 'gw')}", 2)
    yield made
    for member in made.made:
        member.admin.close()
    made.close()


class Program(threading.Thread):
    """A program that is started again whenever its connection is lost, and goes on from what the broker knows."""

    def __init__(self, member: Member, token: str, stop: threading.Event) -> None:
        super().__init__(name=token)
        self.member, self.token, self.stop = member, token, stop
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            while not self.stop.is_set():
                try:
                    with closing(psycopg.connect(self.member.dsn, autocommit=True)) as connection:
                        party = Party(connection, self.token)
                        while not self.stop.is_set() and self.live(party):
                            pass
                        return
                except LOST:
                    self.stop.wait(0.1)
        except BaseException as failure:
            self.failure = failure

    def live(self, party: Party) -> bool:
        """Do the next thing; false when everything is done."""
        raise NotImplementedError

    def pause(self) -> bool:
        return not self.stop.wait(0.05)


class Server(Program):
    """Writes each request down and answers it, in one transaction."""

    def live(self, party: Party) -> bool:
        party.serve(SERVICE)
        while not self.stop.is_set():
            with party.connection.transaction():
                got = party.receive("any", option="sync")
                if got is None:
                    done = False
                else:
                    texts = [bytes(got["message"]).decode()]
                    while got["status"] not in ("RECV_LAST", "RECV_ONLY"):
                        got = party.receive(got["conversation"])
                        assert got is not None
                        texts.append(bytes(got["message"]).decode())
                    party.connection.execute(
                        "insert into done values (%s, %s, %s)", [texts, self.token, got["conversation"]]
                    )
                    party.send(f"answer {texts[0]}", got["conversation"], user_status=texts[0])
                    party.both(got["conversation"])
                    done = True
            if not done:
                self.pause()
        return False


class Asker(Program):
    """Asks, waits for the answer, and asks on in the same conversation, as `last` tells; writes the answers down."""

    def __init__(self, member: Member, token: str, stop: threading.Event, shop: Member) -> None:
        super().__init__(member, token, stop)
        self.shop = shop
        self.is_done = False

    def live(self, party: Party) -> bool:
        last = party.sync("last")
        if last["code"] == "00780305" or last["status"] in ("BACKEDOUT",):
            number = 0 if last["user_status"] is None else self.number(last["user_status"])
            self.ask(party, number)
            return True
        number = self.number(last["user_status"])
        if last["status"] == "RECEIVED":
            party.sync("backout", last["uow_id"])
        elif last["status"] in ("ACCEPTED", "DELIVERED"):
            self.pause()
        else:
            assert last["status"] == "PROCESSED", last
            self.is_really_done(last["user_status"])
            return self.go_on(party, last["conversation"], number)
        return True

    def go_on(self, party: Party, conversation: str, number: int) -> bool:
        """Receive the answer, and ask the next question with the commit of that."""
        with party.connection.transaction():
            got = party.receive(conversation)
            if got is None:
                if party.connection.execute("select 1 from seen where text = %s", [self.text(number)]).fetchone():
                    if number + 1 == CONVERSATIONS * REQUESTS:
                        self.is_done = True
                        return False
                    self.ask(party, number + 1)
                else:
                    self.pause()
                return True
            text = bytes(got["message"]).decode()
            assert text == f"answer {self.text(number)}"
            party.connection.execute("insert into seen values (%s)", [self.text(number)])
            if (number + 1) % REQUESTS == 0:
                party.sync("commit", got["uow_id"])
            else:
                party.send(self.text(number + 1), conversation, user_status=self.text(number + 1))
                party.both(conversation)
        return True

    def ask(self, party: Party, number: int) -> None:
        """Ask in a new conversation, with a unit of two messages."""
        text = self.text(number)
        try:
            sent = party.send(text, to_service=SERVICE, user_status=text)
            party.send("more", sent["conversation"])
            party.sync("commit", sent["uow_id"])
        except TOO_EARLY as refused:
            if "has not asked" not in str(refused):
                raise
            self.pause()

    def is_really_done(self, text: str) -> None:
        """Look whether what its sender calls PROCESSED is."""
        while not self.stop.is_set():
            try:
                with closing(psycopg.connect(self.shop.dsn, autocommit=True)) as connection:
                    assert value(connection, "select count(*) from done where texts[1] = %s", [text]) == 1, text
                    return
            except LOST:
                self.pause()

    def text(self, number: int) -> str:
        return f"{self.token}.{number}"

    def number(self, text: str) -> int:
        return int(text.split(".")[1])


class Stage(Staffed):
    """The two brokers with their workers, and what may befall them."""

    def __init__(self, fleet: Fleet, workers: Workers) -> None:
        self.home = fleet.broker("home", site=fleet.sites[0])
        self.shop = fleet.broker("shop", site=fleet.sites[1])
        super().__init__(workers)
        for member in (self.home, self.shop):
            make_service(member.admin, SERVICE, status_lifetime=9, store="broker", lifetime="1 hour")
        rows(self.shop.admin, "create table done (texts text[], token text, conversation text)")
        rows(self.home.admin, "create table seen (text text primary key)")
        call(self.home.admin, "create_link", "to_shop", self.shop.dsn)
        call(self.shop.admin, "relay_services")
        call(self.home.admin, "place_service", *SERVICE.split("/"), "shop")
        self.run(self.home, self.shop)
        wait_until(lambda: value(self.shop.admin, "select count(*) from pgps.links") > 0, timeout=60)
        call(self.shop.admin, "grant_service", *SERVICE.split("/"), "send", "pgps_neighbour")
        call(self.home.admin, "grant_service", *SERVICE.split("/"), "serve", "pgps_neighbour")

    def wait_for_answers(self, enough: int, programs: list[Program]) -> None:
        wait_until(
            lambda: value(self.home.admin, "select count(*) from seen") >= enough or failed(programs), what="answers"
        )


@pytest.mark.timeout(300)
def test_conversations_cross_exactly_once_while_everything_is_killed(fleet: Fleet, workers: Workers) -> None:
    print(f"PGPS_LINK_SEED={SEED}")
    chance = random.Random(SEED)
    stage = Stage(fleet, workers)
    stop = threading.Event()
    clients = [Asker(stage.home, f"c{n}", stop, stage.shop) for n in range(CLIENTS)]
    servers = [Server(stage.shop, f"s{n}", stop) for n in range(SERVERS)]
    programs: list[Program] = [*clients, *servers]
    blows = [(blow, member) for blow in (stage.kill_worker, stage.crash, stage.cut_connections)
             for member in (stage.home, stage.shop)]  # fmt: skip
    chance.shuffle(blows)
    wanted = CLIENTS * CONVERSATIONS * REQUESTS
    for program in programs:
        program.start()
    try:
        for number, (blow, member) in enumerate(blows):
            stage.wait_for_answers((number + 1) * wanted // (len(blows) + 2), programs)
            assert not failed(programs)
            blow(member)
        wait_until(lambda: all(client.is_done for client in clients) or failed(programs), timeout=100, what="the end")
    finally:
        stop.set()
        for program in programs:
            program.join()
    assert not failed(programs)
    done = rows(stage.shop.admin, "select texts, token, conversation from done")
    asked = [f"c{n}.{number}" for n in range(CLIENTS) for number in range(CONVERSATIONS * REQUESTS)]
    # Each request was processed once, and answered once.
    assert Counter(texts[0] for texts, _, _ in done) == Counter(asked)
    assert sorted(text for (text,) in rows(stage.home.admin, "select text from seen")) == sorted(asked)
    # Whole, and each conversation by one server, in which the questions of one client are.
    assert all((len(texts) == 2) == (int(texts[0].split(".")[1]) % REQUESTS == 0) for texts, _, _ in done)
    by_conversation: dict[str, set[tuple[str, str]]] = {}
    for texts, token, conversation in done:
        by_conversation.setdefault(conversation, set()).add((token, texts[0].split(".")[0]))
    assert len(by_conversation) == CLIENTS * CONVERSATIONS
    assert all(len(parties) == 1 for parties in by_conversation.values())

    # Who has sent a unit sees that it is processed, and nothing waits.
    wait_until(lambda: statuses(stage.home) == {("server", "PROCESSED"): wanted}, what="statuses of requests")
    wait_until(lambda: statuses(stage.shop) == {("client", "PROCESSED"): wanted}, what="statuses of answers")
    ask_with_the_library(stage)
    assert fleet.differences() == []


def ask_with_the_library(stage: Stage) -> None:
    """Let the client library's request and answer run over the same links."""

    def handle(messages: list[Message], connection: Any) -> str:
        connection.execute("insert into done values (%s, 'library', '')", [[m.data.decode() for m in messages]])
        return "answered"

    with Client(stage.home.dsn) as home, Client(stage.shop.dsn) as shop, shop.logon("library") as clerk:
        asked: list[bytes] = []

        def ask() -> None:
            with home.logon("desk") as desk:
                answer = desk.request(SERVICE, "how", "much", timeout=60)
                asked.extend(message.data for message in answer or [])

        asking = threading.Thread(target=ask)
        asking.start()
        while asking.is_alive():
            clerk.answer(SERVICE, handle, timeout=1)
        asking.join()
    assert asked == [b"answered"]
    assert value(stage.shop.admin, "select count(*) from done where texts = array['how', 'much']") == 1


def failed(programs: list[Program]) -> list[BaseException]:
    return [program.failure for program in programs if program.failure is not None]


def statuses(member: Member) -> Counter[tuple[str, str]]:
    return Counter(rows(member.admin, "select sent_to, status from pgps.units_of_work where status <> 'BACKEDOUT'"))
