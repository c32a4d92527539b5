"""Groups whose members are killed: whatever happens, each member gets everything once, in one order, causes first."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fix_broker import call, rows, value
from tests.fix_db import Connect, wait_until
from tests.fix_spools import Spool

_MEMBERS = ("anna", "bert", "carl")
_SOURCES = ("north", "south")
_JOURNAL = """
    create table journal (place bigserial, member text, life integer, seqn bigint, entry integer, message jsonb,
        in_replay boolean)
"""


class Group:
    """A spool with questions, and members in processes of their own that answer them."""

    def __init__(self, dsn: str, connect: Connect, ordering: str, seed: int) -> None:
        self.dsn, self.ordering, self.seed = dsn, ordering, seed
        self.chance = random.Random(seed)
        self.admin = connect(dsn=dsn)
        rows(self.admin, _JOURNAL)
        call(self.admin, "create_spool", "questions")
        self.spool = Spool(self.admin, "questions")
        self.sources = {source: connect(dsn=dsn) for source in _SOURCES}
        self.asked = dict.fromkeys(_SOURCES, 0)
        self.pointers = {0}
        self.lives = dict.fromkeys(_MEMBERS, 0)
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        for member in _MEMBERS:
            self.start(member)

    def start(self, member: str) -> None:
        self.lives[member] += 1
        arguments = [self.dsn, "questions", member, str(self.lives[member]), self.ordering]
        program = Path(__file__).with_name("doomed.py")
        seed = f"{self.seed}/{member}/{self.lives[member]}"
        self.processes[member] = subprocess.Popen([sys.executable, program, *arguments, seed], env=dict(os.environ))

    def kill(self, member: str) -> None:
        self.processes[member].kill()
        self.processes[member].wait()

    def close(self) -> None:
        for member in _MEMBERS:
            self.kill(member)
        left = (
            "select count(*) from pg_stat_activity where application_name = 'doomed' and datname = current_database()"
        )
        wait_until(lambda: value(self.admin, left) == 0, what="the server notices")

    def noted(self, member: str, *, more: str) -> int:
        """Return how many lines of the journal a member has written; let what was asked for be done first."""
        self.spool.dispatch()
        found: int = value(self.admin, f"select count(*) from journal where member = %s and {more}", [member])
        return found

    def ask(self) -> None:
        source = self.chance.choice(_SOURCES)
        with self.sources[source].transaction():
            for _ in range(self.chance.randint(1, 3)):
                question = f'["{source}", {self.asked[source]}]'
                call(self.sources[source], "spool", "questions", 1, question, ordering=self.ordering)
                self.asked[source] += 1

    def crash(self) -> None:
        member = self.chance.choice(_MEMBERS)
        if self.chance.random() < 0.7:
            # In each life a member gets at least the row that ends its replay.
            life = f"life = {self.lives[member]}"
            wait_until(lambda: self.noted(member, more=life) > 0, what=f"{member} notes something")
        self.kill(member)
        self.start(member)

    def advance(self) -> None:
        """Move the replay pointer to what all members have processed."""
        query = """
            select min(upto) from (select coalesce(max(seqn) filter (where not in_replay), 0) as upto
                from unnest(%s::text[]) m left join journal j on j.member = m group by m) x
        """
        processed: int = value(self.admin, query, [list(_MEMBERS)])
        if processed > max(self.pointers):
            self.spool.pointer(processed)
            self.pointers.add(processed)

    def tell(self, steps: int, crashes: int) -> None:
        at = set(self.chance.sample(range(steps), crashes))
        for step in range(steps):
            self.crash() if step in at else self.chance.choice(
                (self.ask, self.ask, self.spool.dispatch, self.advance)
            )()
        self.ask()
        total = sum(self.asked.values()) * (1 + len(_MEMBERS))
        done = "entry is not null and not in_replay"
        wait_until(
            lambda: all(self.noted(member, more=done) >= total for member in _MEMBERS),
            timeout=300,
            what="all members have everything",
        )

    def check(self) -> None:
        query = (
            "select seqn, message from journal where member = %s and entry is not null and not in_replay order by place"
        )
        histories = [rows(self.admin, query, [member]) for member in _MEMBERS]
        assert [seqn for seqn, _ in histories[0]] == list(range(1, len(histories[0]) + 1))
        assert histories[0] == histories[1] == histories[2], "everything, once, in one order"
        messages = [message for _, message in histories[0]]
        questions = [message for message in messages if len(message) == 2]
        for source, count in self.asked.items():
            assert [number for who, number in questions if who == source] == list(range(count))
        for member in _MEMBERS:
            assert [m[1:] for m in messages if m[0] == member] == questions, "each is answered once, in their order"
        for place, message in enumerate(messages):
            assert len(message) == 2 or message[1:] in messages[:place], "no answer comes before its question"
        self.check_replays(dict(histories[0]))

    def check_replays(self, contents: dict[int, list[object]]) -> None:
        query = "select seqn, message, in_replay from journal where member = %s and life = %s order by place"
        for member in _MEMBERS:
            for life in range(1, self.lives[member] + 1):
                noted = rows(self.admin, query, [member, life])
                places = [seqn for seqn, _, _ in noted]
                upto = places.index(0) if 0 in places else len(places)
                assert all(in_replay for _, _, in_replay in noted[:upto])
                assert not any(in_replay for _, _, in_replay in noted[upto:])
                assert places[:upto] == list(range(1, upto + 1))
                assert [message for _, message, _ in noted[:upto]] == [contents[seqn] for seqn in places[:upto]]
                assert upto in self.pointers if 0 in places else upto <= max(self.pointers)


@pytest.fixture
def group(request: pytest.FixtureRequest, own_database: str, connect: Connect) -> Iterator[Group]:
    ordering, seed = request.param
    made = Group(own_database, connect, ordering, seed)
    yield made
    made.close()


@pytest.mark.parametrize("group", [("cbcast", 1), ("abcast", 2)], indirect=True)
def test_members_that_are_killed_get_everything_once_in_one_order_causes_first(group: Group) -> None:
    group.tell(steps=25, crashes=5)
    group.check()


@pytest.mark.slow
@pytest.mark.parametrize(
    "group", [(("cbcast", "abcast", "fbcast", "gbcast")[n % 4], 100 + n) for n in range(12)], indirect=True
)
def test_members_that_are_killed_again_and_again(group: Group) -> None:
    group.tell(steps=150, crashes=30)
    group.check()
