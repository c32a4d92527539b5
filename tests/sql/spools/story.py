"""Stories of calls that are told to a broker and to the model of a spool."""

from __future__ import annotations

import random
from typing import Any

import psycopg
from psycopg.types.json import Jsonb

from tests.fix_broker import call, rows, value
from tests.fix_spools import pattern_call
from tests.sql.spools.model import Delivery, Message, Model, Pattern

NAME = "model"


class Story:
    """Random calls of all functions by three sessions and two members, told to a broker and to the model."""

    def __init__(self, seed: int, connect: Any, limit: int | None = None) -> None:
        self.dice = random.Random(seed)
        self.connect = connect
        self.model = Model(limit)
        self.open()
        self.texts = 0
        self.had: set[int] = set()
        call(self.admin, "create_spool", NAME, max_messages=limit, on_limit="drop_oldest" if limit else "refuse")

    def open(self) -> None:
        self.admin = self.connect()
        self.sessions = [self.connect(autocommit=False) for _ in range(3)]
        self.hosts: list[psycopg.Connection | None] = [None, None]

    def close(self) -> None:
        for connection in (self.admin, *self.sessions, *self.hosts):
            if connection is not None:
                connection.close()

    def reopened(self) -> None:
        """Connect anew after the server was killed: open transactions are gone, nobody is present."""
        for session in range(3):
            self.model.end(session, commit=False)
        for member in self.model.members:
            member.present = False
        self.open()

    def tell(self, steps: int) -> None:
        for _ in range(steps):
            self.step()

    def step(self) -> None:
        steps = {
            self.spool: 16 if self.model.limit else 8,
            self.checkpoint: 2,
            self.pointer: 3,
            self.checkpoint_pointer: 1,
            self.discard: 2,
            self.cancel: 1,
            self.end: 6,
            self.dispatch: 5,
            self.join: 2,
            self.leave: 1,
            self.crash: 1,
            self.take: 6,
            self.acknowledge: 3,
            self.replay: 2,
        }
        self.dice.choices(list(steps), list(steps.values()))[0]()

    def session(self) -> tuple[int, psycopg.Connection]:
        number = self.dice.randrange(3)
        return number, self.sessions[number]

    def pattern(self) -> Pattern:
        found: Pattern = {}
        if self.dice.random() < 0.4:
            low, high = sorted((self.dice.randrange(5), self.dice.randrange(5)))
            found["K"] = (self.dice.choice([low, None]), self.dice.choice([high, None]))
        if self.dice.random() < 0.3:
            low = self.dice.randrange(-3, self.model.last + 2)
            found["seqn"] = (low, low + self.dice.randrange(1, 20))
        if self.dice.random() < 0.2:
            found["keywords"] = self.dice.choice([[], ["a"], ["a", "b"]])
        return found

    def typed(self, pattern: Pattern) -> dict[str, Any]:
        found = dict(pattern)
        if "K" in found:
            found["keys"] = Jsonb({"K": list(found.pop("K"))})
        if "seqn" in found:
            found["seqn"] = f"[{found['seqn'][0]},{found['seqn'][1]})"
        return found

    def message(self, checkpoint: bool) -> Message:
        self.texts += 1
        keys = {"K": self.dice.randrange(5)} if self.dice.random() < 0.7 else None
        keywords = self.dice.choice([None, ["a"], ["a", "b"]])
        return Message(0, 0, self.texts, keys, keywords, checkpoint)

    def asked(self, message: Message) -> list[Any]:
        keys = None if message.keys is None else Jsonb(message.keys)
        return [1, Jsonb(message.text), keys, message.keywords]

    def spool(self) -> None:
        number, connection = self.session()
        for _ in range(self.dice.choice([1, 1, 3])):
            message = self.message(False)
            message.request = call(connection, "spool", NAME, *self.asked(message))
            self.model.ask(number, "message", ("append", message, {}))

    def checkpoint(self) -> None:
        number, connection = self.session()
        message, pattern = self.message(True), self.pattern()
        kind = self.dice.choice(["append", "append", "prepend"])
        given = self.typed(pattern)
        discard = {k: v.obj if isinstance(v, Jsonb) else v for k, v in given.items()}
        function = "prepend_and_discard" if kind == "prepend" else "spool_and_discard"
        message.request = call(connection, function, NAME, *self.asked(message), discard=Jsonb(discard))
        self.model.ask(number, "message", ("prepend" if kind == "prepend" else "checkpoint", message, pattern))

    def pointer(self) -> None:
        number, connection = self.session()
        at = self.dice.randrange(-2, self.model.last + 3)
        before = self.model.effective_pointer(number)
        allowed = at <= self.model.last and (before is None or at >= before)
        # Within the session's transaction, also when it begins here.
        connection.execute("select 1")
        try:
            with connection.transaction():
                call(connection, "spool_set_replay_pointer", NAME, at)
        except psycopg.errors.InvalidParameterValue:
            assert not allowed, (at, before, self.model.last)
        else:
            assert allowed, (at, before, self.model.last)
            self.model.ask(number, "pointer", at)

    def checkpoint_pointer(self) -> None:
        number, connection = self.session()
        at = self.dice.choice([None, self.dice.randrange(-2, self.model.last + 3)])
        call(connection, "spool_set_checkpoint_pointer", NAME, at)
        self.model.ask(number, "checkpoint_pointer", at)

    def discard(self) -> None:
        number, connection = self.session()
        pattern = self.pattern()
        found = pattern_call(connection, "spool_discard", NAME, **self.typed(pattern))
        assert found == len(self.model.lying(self.model.effective_pointer(number), pattern))
        self.model.ask(number, "discard", pattern)

    def cancel(self) -> None:
        # By a session whose transaction ends at once; of what is committed, since others' is not to be seen.
        waiting = [a[1] for _, who, verb, a in self.model.asked if verb == "message" and who is None]
        there = [*self.model.messages.values(), *waiting]
        if not there:
            return
        message = self.dice.choice(there)
        gone = any(verb == "cancel" and a == message.request for _, _, verb, a in self.model.asked)
        found = call(self.admin, "spool_cancel", message.request)
        if found:
            assert not gone
            assert message.request not in self.had
            self.model.ask(None, "cancel", message.request)
            self.dispatch()
        else:
            passed = self.model.pointer is not None and message.seqn and message.seqn <= self.model.pointer
            assert gone or message.request in self.had or passed

    def end(self) -> None:
        number, connection = self.session()
        commit = self.dice.random() < 0.8
        if commit:
            connection.commit()
        else:
            connection.rollback()
        self.model.end(number, commit=commit)

    def dispatch(self) -> None:
        rows(self.admin, "select pgps.dispatch()")
        self.model.dispatch()
        self.compare()

    def host(self, number: int) -> psycopg.Connection:
        found = self.hosts[number]
        if found is None:
            found = self.hosts[number] = self.connect()
            rows(found, "select * from pgps.connect_client(%s, take_over => true)", [f"member_{number}"])
        return found

    def join(self) -> None:
        number = self.dice.randrange(2)
        replay = self.dice.random() < 0.6
        call(self.host(number), "join_group", NAME, f"member_{number}", replay=replay)
        self.model.join(self.model.members[number], replay)

    def leave(self) -> None:
        number = self.dice.randrange(2)
        if self.model.members[number].present:
            call(self.host(number), "leave_group", NAME, f"member_{number}")
            self.model.members[number].present = False

    def crash(self) -> None:
        number = self.dice.randrange(2)
        gone = self.hosts[number]
        if gone is not None:
            # Not waited for: another session takes the client over.
            gone.close()
            self.hosts[number] = None
            self.model.members[number].present = False
            self.host(number)

    def take(self) -> None:
        number = self.dice.randrange(2)
        member = self.model.members[number]
        if not member.present:
            return
        connection, client = self.host(number), f"member_{number}"
        most = self.dice.choice([1, 3, 100])
        query = "select seqn, message, in_replay, id from pgps.receive_spooled(%s, %s, %s)"
        found = rows(connection, query, [NAME, client, most])
        self.model.next(member)
        due = self.model.due(member)[:most]
        assert [row[:3] for row in found] == due
        self.had |= {row[3] for row in found}
        member.got = found
        if found and self.dice.random() < 0.8:
            upto = self.dice.randrange(1, len(found) + 1)
            assert call(connection, "ack_spooled", NAME, client, found[upto - 1][3]) == upto
            self.model.ack(member, due[:upto])
            member.got = found[upto:]

    def acknowledge(self) -> None:
        """Acknowledge what was received before; pointers may have moved since, and replays may wait."""
        number = self.dice.randrange(2)
        member = self.model.members[number]
        due = self.model.due(member)
        left = [row for row in member.got if self.places(row, due)]
        if member.present and left:
            row = self.dice.choice(left)
            handed = [*due[: self.places(row, due) - 1], row[:3]]
            received = member.got.index(row) + 1
            # Some of what was received may have been discarded since.
            found = call(self.host(number), "ack_spooled", NAME, f"member_{number}", row[3])
            assert found in {len(handed), received}
            self.model.ack(member, handed)
            member.got = member.got[received:]

    def places(self, row: Any, due: list[Delivery]) -> int:
        """Count what comes next up to a delivery that was received before; a gap may have grown since."""
        for place, (seqn, message, in_replay) in enumerate(due, 1):
            if (seqn, message, in_replay) == row[:3]:
                return place
            gaps = [one["gap"] for one in (message, row[1]) if isinstance(one, dict) and "gap" in one]
            if len(gaps) == 2 and in_replay == row[2] and gaps[0][0] <= row[0] <= seqn:
                return place
        return 0

    def replay(self) -> None:
        pattern = self.pattern()
        found = pattern_call(self.admin, "spool_replay", NAME, **self.typed(pattern))
        assert self.model.waits() or found == len(self.model.replayed(pattern).messages)
        self.model.replay([member for member in self.model.members if member.present], pattern)

    def compare(self) -> None:
        model = self.model
        query = "select seqn, message, id from pgps.spooled_messages where spool = %s"
        assert rows(self.admin, query, [NAME]) == [
            (m.seqn, m.text, m.request) for m in sorted(model.messages.values(), key=lambda m: m.seqn)
        ]
        query = """
            select coalesce(last_seqn, 0), replay_pointer, checkpoint_pointer, replayable, first_seqn
            from pgps.spools where name = %s
        """
        first = min(model.messages, default=None)
        assert rows(self.admin, query, [NAME]) == [
            (model.last, model.pointer, model.checkpoint, len(model.replayed({}).messages), first)
        ]
        if self.dice.random() < 0.2:
            value(self.admin, "select pgps.reclaim()")
