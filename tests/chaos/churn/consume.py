"""Consume: what is processed is written down in the transaction that acknowledges it, so each event is there once."""

from __future__ import annotations

import psycopg

from tests.chaos.churn.stage import BOSS, Player, Stage
from tests.chaos.churn.truth import Life
from tests.fix_broker import call, column, rows, value

_TAKE = """
insert into churn.got (life, n, event_id)
select %s, (payload ->> 'n')::bigint, event_id from pgps.take(%s, %s, %s) with ordinality order by ordinality
"""
_RECEIVE = "select (payload ->> 'n')::bigint, event_id, attempt from pgps.receive(%s, %s, %s) with ordinality"
_NOTE = "insert into churn.got (life, n, event_id) select %s, * from unnest(%s::bigint[], %s::bigint[])"

Rows = list[tuple[int, int, int]]


class Consumer(Player):
    """Consumes what subscription there is of a name, by another one of the ways there are each time."""

    def __init__(self, stage: Stage, name: str, number: int) -> None:
        super().__init__(stage, f"consumer-{name}-{number}", BOSS)
        self.subscription, self.number = name, number

    def step(self) -> float:
        life = self._life()
        if life is None or life.mode == "called" or (life.mode == "all" and self.number > 1):
            return 0.3
        consumer = f"c{self.number}" if life.mode == "any" and self.random.random() < 0.5 else None
        most = self.random.choice([1, 2, 5, 20, 200])
        way = self.random.choice([self._take, self._take, self._receive, self._receive_apart])
        found = way(life, most, consumer)
        self.stage.counts["consumed"] += found
        return 0.0 if found == most else self.random.uniform(0.02, 0.12)

    def _life(self) -> Life | None:
        numbers = column(self.connection, "select life from churn.life where name = %s", [self.subscription])
        return self.stage.lives.get(numbers[0]) if numbers else None

    def _commit(self, life: Life) -> bool:
        """Commit, if all of it was of one subscription; else roll back: this name is another one's by now."""
        chance = self.random.random()
        is_same = column(self.connection, "select life from churn.life where name = %s", [life.name]) == [life.number]
        rows(self.connection, "commit" if is_same and chance > 0.07 else "rollback")
        return is_same and chance > 0.07

    def _take(self, life: Life, most: int, consumer: str | None) -> int:
        rows(self.connection, "begin")
        if self._life() is not life:
            rows(self.connection, "rollback")
            return 0
        query = psycopg.sql.SQL(_TAKE)
        count = self.connection.execute(query, [life.number, life.name, most, consumer]).rowcount
        return count if self._commit(life) else 0

    def _receive(self, life: Life, most: int, consumer: str | None, *, apart: bool = False) -> int:
        rows(self.connection, "begin")
        if self._life() is not life:
            rows(self.connection, "rollback")
            return 0
        found: Rows = rows(self.connection, _RECEIVE, [life.name, most, consumer])
        if apart:
            rows(self.connection, "commit")
            rows(self.connection, "begin")
        put_back = self._put_back(life, found, consumer) if found else 0
        kept = found[put_back:]
        if not kept:
            rows(self.connection, "commit" if put_back else "rollback")
            return 0
        if self.random.random() < 0.2 and all(attempt == 1 for *_, attempt in found) and not put_back:
            kept = kept[: self.random.randint(1, len(kept))]
            acked = call(self.connection, "ack", life.name, kept[-1][1], consumer=consumer)
        else:
            acked = value(self.connection, "select pgps.ack(%s, consumer => %s)", [life.name, consumer])
        if acked != len(kept):
            # A lease has ended, or it was given to somebody else, or has another filter, since it was received.
            is_same = self._life() is life
            rows(self.connection, "rollback")
            self.stage.counts["acked otherwise"] += 1
            if is_same and not apart and life.mode == "all":
                self.stage.broken.append(f"{life.name}: ack covers {acked} of {len(kept)} that were just received")
            return 0
        rows(self.connection, _NOTE, [life.number, [n for n, *_ in kept], [event for _, event, _ in kept]])
        return len(kept) if self._commit(life) else 0

    def _receive_apart(self, life: Life, most: int, consumer: str | None) -> int:
        return self._receive(life, most, consumer, apart=True)

    def _put_back(self, life: Life, found: Rows, consumer: str | None) -> int:
        """Put the first ones back now and then; return how many."""
        if self.random.random() > 0.12:
            return 0
        count = self.random.choice([1, 1, 2])
        for n, event, _ in found[:count]:
            life.put_back.add(n)
            query = "select pgps.nack(%s, %s, 'not now', %s::interval, %s)"
            after = f"{self.random.choice([0, 0, 300])} milliseconds"
            rows(self.connection, query, [life.name, event, after, consumer])
            self.stage.counts["put back"] += 1
        return min(count, len(found))
