"""A member of a process group that will be killed: `python doomed.py DSN SPOOL MEMBER LIFE ORDERING SEED`.

It notes what it gets in a journal, answers what is a question, and acknowledges it, all in one transaction. It takes
different portions, and sometimes leaves a part of one for later.
"""

from __future__ import annotations

import json
import random
import sys
from typing import Any

import psycopg
from psycopg import sql

_RECEIVE = "select seqn, entry, message, in_replay, id from pgps.receive_spooled(%s, %s, %s)"
_JOURNAL = "insert into journal (member, life, seqn, entry, message, in_replay) values (%s, %s, %s, %s, %s, %s)"


def main(dsn: str, spool: str, member: str, life: str, ordering: str, seed: str) -> None:
    """Receive, answer and acknowledge until the end."""
    chance = random.Random(seed)
    with psycopg.connect(dsn, application_name="doomed", autocommit=True) as connection:
        found = connection.execute("select channel from pgps.spools where name = %s", [spool]).fetchone()
        assert found is not None
        connection.execute(sql.SQL("listen {}").format(sql.Identifier(found[0])))
        connection.execute("select pgps.connect_client(%s, take_over => true)", [member])
        connection.execute("select pgps.join_group(%s, %s, replay => true)", [spool, member])
        while True:
            with connection.transaction():
                batch = connection.execute(_RECEIVE, [spool, member, chance.randint(1, 7)]).fetchall()
                for row in batch[: chance.randint(1, 7)]:
                    _process(connection, spool, member, life, ordering, row)
            if not batch:
                for _ in connection.notifies(timeout=0.2, stop_after=1):
                    pass


def _process(
    connection: psycopg.Connection[Any], spool: str, member: str, life: str, ordering: str, row: tuple[Any, ...]
) -> None:
    seqn, entry, message, in_replay, delivery = row
    connection.execute(_JOURNAL, [member, int(life), seqn, entry, json.dumps(message), in_replay])
    if entry == 1 and not in_replay:
        answer = json.dumps([member, *message])
        connection.execute("select pgps.spool(%s, 2, %s, ordering => %s)", [spool, answer, ordering])
    connection.execute("select pgps.ack_spooled(%s, %s, %s)", [spool, member, delivery])


if __name__ == "__main__":
    main(*sys.argv[1:])
