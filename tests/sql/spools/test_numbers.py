"""Numbers of spooled messages: dense, in the order of commit, given at dispatch; what is kept with a message."""

from __future__ import annotations

from tests.fix_broker import call, value
from tests.fix_db import Connect
from tests.fix_spools import Spool


def test_a_message_gets_its_number_when_it_is_dispatched(spool: Spool) -> None:
    made = call(spool.connection, "spool", spool.name, 1, '"a"')
    assert call(spool.connection, "spool_getseqn", made) is None
    assert spool.contents() == {}
    spool.dispatch()
    assert call(spool.connection, "spool_getseqn", made) == 1
    assert spool.contents() == {1: "a"}
    assert call(spool.connection, "spool_getseqn", 0) == 0


def test_numbers_are_dense_and_in_the_order_of_commit(connect: Connect, spool: Spool) -> None:
    late, never = connect(autocommit=False), connect(autocommit=False)
    call(late, "spool", spool.name, 1, '"late"')
    call(never, "spool", spool.name, 1, '"never"')
    spool.spool(1, 2)
    late.commit()
    never.rollback()
    spool.spool(3)
    assert spool.contents() == {1: 1, 2: 2, 3: "late", 4: 3}
    assert value(spool.connection, "select last_seqn from pgps.spools where name = %s", [spool.name]) == 4
