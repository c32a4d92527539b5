"""A model of conversations, and stories that are told to it and to the broker: twenty clients, five servers.

Everybody has a session. What a session does may be a part of a transaction, which is committed late or rolled back.
The model knows what is visible, so it says what a server receives next, and how every unit of work stands.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import psycopg

from tests.fix_units import Party, Row

CLIENTS, SERVERS = 20, 5


@dataclass
class Unit:
    """A unit of work, as it stands when all that was done to it is committed."""

    uow_id: str
    conversation: str
    to_server: bool
    texts: list[str]
    entry: int
    status: str = "ACCEPTED"
    attempts: int = 0
    # Whose transaction, which runs still, has sent it, and whose has done something to it.
    added_by: int | None = None
    locked_by: int | None = None


@dataclass
class Conversation:
    client: int
    server: int | None = None
    units: list[Unit] = field(default_factory=list)

    @property
    def place(self) -> int:
        """Return where a conversation without a server stands among the new ones: by its first unit."""
        return min(unit.entry for unit in self.units if unit.to_server)

    def next(self, who: int, *, to_server: bool) -> Unit | None:
        """Return the unit that comes next for whoever receives on that side; None when it is locked or held."""
        for unit in self.units:
            if unit.to_server != to_server or unit.added_by not in (None, who):
                continue
            if unit.locked_by not in (None, who) or unit.status == "DELIVERED":
                return None
            if unit.status == "ACCEPTED":
                return unit
        return None


@dataclass
class Transaction:
    """What a transaction has touched, and how to take it back."""

    held: str | None
    conversations: set[str] = field(default_factory=set)
    units: list[Unit] = field(default_factory=list)
    undo: list[Callable[[], None]] = field(default_factory=list)


class Story:
    """Lets sessions do things at random, and compares what the broker does with the model."""

    def __init__(self, seed: int, service: str, connect: Callable[[], psycopg.Connection]) -> None:
        self.random = random.Random(seed)
        self.service = service
        self.parties = [Party(connect(), f"c{n} {service}") for n in range(CLIENTS)]
        self.parties += [Party(connect(), f"s{n} {service}").serve(service) for n in range(SERVERS)]
        self.conversations: dict[str, Conversation] = {}
        self.transactions: dict[int, Transaction] = {}
        self.holds: dict[int, str | None] = {}
        self.entries = 0
        self.sent = 0

    # Transactions -----------------------------------------------------------------------------------------------------

    def begin(self, who: int) -> None:
        self.parties[who].connection.execute("begin")
        self.transactions[who] = Transaction(self.holds.get(who))

    def end(self, who: int, *, commit: bool) -> None:
        self.parties[who].connection.execute("commit" if commit else "rollback")
        transaction = self.transactions.pop(who)
        if not commit:
            self.holds[who] = transaction.held
            for undo in reversed(transaction.undo):
                undo()
        for unit in transaction.units:
            unit.added_by = unit.locked_by = None

    def change(self, who: int, unit: Unit, status: str, *, attempts: int = 0) -> None:
        """Let a session change a unit, which it has locked."""
        if (transaction := self.transactions.get(who)) is not None:
            before = (unit.status, unit.attempts)

            def undo() -> None:
                unit.status, unit.attempts = before

            transaction.undo.append(undo)
            transaction.units.append(unit)
            unit.locked_by = who
        unit.status, unit.attempts = status, unit.attempts + attempts

    def synced(self, who: int, name: str) -> None:
        """Note that a SYNCPOINT has locked a conversation."""
        if who in self.transactions:
            self.transactions[who].conversations.add(name)

    def is_free(self, who: int, name: str) -> bool:
        """Return whether no transaction of somebody else has locked a conversation."""
        return not any(name in t.conversations for other, t in self.transactions.items() if other != who)

    # What clients do --------------------------------------------------------------------------------------------------

    def request(self, who: int) -> None:
        """Send a unit in a new conversation, or in one of the client's own."""
        party = self.parties[who]
        mine = [n for n, c in self.conversations.items() if c.client == who and self.is_free(who, n)]
        name = self.random.choice([None, *mine])
        texts = [f"{self.sent}.{n}" for n in range(self.random.randint(1, 3))]
        self.sent += 1
        row: Row | None = None
        for text in texts:
            if name is None:
                row = party.send(text, to_service=self.service, status_lifetime=9)
                name = str(row["conversation"])
            else:
                row = party.send(text, name, status_lifetime=9)
        assert row is not None
        assert name is not None
        party.sync("commit", row["uow_id"])
        self.synced(who, name)
        self.add(who, name, who, Unit(row["uow_id"], name, True, texts, self.number()))

    def number(self) -> int:
        self.entries += 1
        return self.entries

    def add(self, who: int, name: str, client: int, unit: Unit) -> None:
        conversation = self.conversations.setdefault(name, Conversation(client))
        conversation.units.append(unit)
        if (transaction := self.transactions.get(who)) is not None:
            unit.added_by = who
            transaction.units.append(unit)
            transaction.undo.append(lambda: conversation.units.remove(unit))

    def take_back(self, who: int) -> None:
        """Cancel a unit that waits."""
        waiting = [
            (n, u)
            for n, c in self.conversations.items()
            if c.client == who and self.is_free(who, n)
            for u in c.units
            if u.to_server and u.status == "ACCEPTED" and u.locked_by in (None, who)
        ]
        if waiting:
            name, unit = self.random.choice(waiting)
            assert self.parties[who].sync("cancel", unit.uow_id)["status"] == "CANCELLED"
            self.synced(who, name)
            self.change(who, unit, "CANCELLED")

    # What both do -----------------------------------------------------------------------------------------------------

    def waiting_for(self, who: int, which: str) -> list[Unit]:
        """Return what a session may receive, in the order in which it does."""
        old, new = [], []
        to_server = who >= CLIENTS
        for conversation in self.conversations.values():
            if (unit := conversation.next(who, to_server=to_server)) is None:
                continue
            if to_server and conversation.server is None:
                new.append(unit)
            elif (conversation.server if to_server else conversation.client) == who:
                old.append(unit)
        found = sorted(old, key=lambda u: u.entry) if which != "new" else []
        place = {name: c.place for name, c in self.conversations.items() if c.units}
        return found + (sorted(new, key=lambda u: place[u.conversation]) if which != "old" else [])

    def receive(self, who: int) -> None:
        """Receive a unit to its end."""
        party = self.parties[who]
        which = self.random.choice(("new", "old", "any")) if who >= CLIENTS else "any"
        expected = self.waiting_for(who, which)
        row = party.receive(which, option="sync")
        assert (row is None) == (not expected), (which, row, expected)
        if row is None:
            return
        unit = expected[0]
        assert (row["uow_id"], row["attempts"], row["number"]) == (unit.uow_id, unit.attempts, 1), which
        texts = [bytes(row["message"]).decode()]
        while row["status"] not in ("RECV_LAST", "RECV_ONLY"):
            row = party.receive(unit.conversation)
            assert row is not None
            texts.append(bytes(row["message"]).decode())
        assert texts == unit.texts
        end = party.receive(unit.conversation)
        assert end is not None
        assert end["code"] == "00740301"
        self.change(who, unit, "DELIVERED")
        self.holds[who] = unit.uow_id

    def held(self, who: int) -> Unit:
        return next(u for c in self.conversations.values() for u in c.units if u.uow_id == self.holds[who])

    def finish(self, who: int) -> None:
        """Commit what is held, with or without an answer, back it out, or cancel it."""
        unit = self.held(who)
        if not self.is_free(who, unit.conversation):
            return
        how = self.random.choice(("commit", "both", "both", "backout", "cancel"))
        party = self.parties[who]
        self.synced(who, unit.conversation)
        conversation = self.conversations[unit.conversation]
        answer = None
        if how == "both":
            text = f"{self.sent}"
            self.sent += 1
            answer = party.send(text, unit.conversation, status_lifetime=9)["uow_id"]
            assert [row["status"] for row in party.both(unit.conversation)] == ["PROCESSED", "ACCEPTED"]
        else:
            party.sync(how, unit.uow_id)
        self.holds[who] = None
        if how == "backout":
            self.change(who, unit, "ACCEPTED", attempts=1)
            return
        self.change(who, unit, "CANCELLED" if how == "cancel" else "PROCESSED")
        if unit.to_server and unit.status == "PROCESSED" and conversation.server is None:
            self.bind(who, conversation)
        if answer is not None:
            self.add(who, unit.conversation, conversation.client,
                     Unit(answer, unit.conversation, not unit.to_server, [text], self.number()))  # fmt: skip

    def bind(self, who: int, conversation: Conversation) -> None:
        """Bind a conversation; what waits in it already moves to the end of the server's own queue."""
        before = [(unit, unit.entry) for unit in conversation.units]

        def undo() -> None:
            conversation.server = None
            for unit, entry in before:
                unit.entry = entry

        if who in self.transactions:
            self.transactions[who].undo.append(undo)
        conversation.server = who
        for unit in conversation.units:
            if unit.to_server and unit.status == "ACCEPTED":
                unit.entry = self.number()

    def leave(self, who: int) -> None:
        """End the session: what it holds is backed out. Another one takes its place."""
        self.parties[who].call("logoff")
        if self.holds.get(who):
            unit = self.held(who)
            unit.status, unit.attempts = "ACCEPTED", unit.attempts + 1
            self.holds[who] = None
        self.parties[who].call("logon", self.parties[who].token)
        if who >= CLIENTS:
            self.parties[who].serve(self.service)

    # The story --------------------------------------------------------------------------------------------------------

    def tell(self, steps: int) -> None:
        for _ in range(steps):
            self.step(self.random.randrange(CLIENTS) if self.random.random() < 0.5 else
                      CLIENTS + self.random.randrange(SERVERS))  # fmt: skip

    def step(self, who: int) -> None:
        """Let one session do one thing."""
        chance = self.random.random()
        if who in self.transactions and chance < 0.35:
            self.end(who, commit=self.random.random() < 0.6)
        elif who not in self.transactions and chance < 0.25:
            self.begin(who)
        elif self.holds.get(who):
            # Clients and servers of one conversation would wait for each other's locks.
            if chance < 0.4 and who not in self.transactions and self.is_free(who, self.held(who).conversation):
                self.leave(who)
            else:
                self.finish(who)
        elif who < CLIENTS and chance < 0.7:
            self.request(who)
        elif who < CLIENTS and chance < 0.8:
            self.take_back(who)
        else:
            self.receive(who)

    def finally_everything_is_processed(self) -> None:
        """End all transactions, and let everybody receive and commit until nothing waits; look at all statuses."""
        for who in list(self.transactions):
            self.end(who, commit=True)
        for who in [who for who, held in self.holds.items() if held]:
            self.finish(who)
        while any(self.waiting_for(who, "any") for who in range(CLIENTS + SERVERS)):
            for who in range(CLIENTS + SERVERS):
                if self.waiting_for(who, "any"):
                    self.receive(who)
                    if self.holds.get(who):
                        self.finish(who)
        for conversation in self.conversations.values():
            for unit in conversation.units:
                sender = conversation.client if unit.to_server else conversation.server
                assert sender is not None
                assert self.parties[sender].status(unit.uow_id) == unit.status
