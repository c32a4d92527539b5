"""Users at hosts: who may log in from where, and what may be seen from where (docs/how-to/hosts.md)."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from pgps.embedded import EmbeddedCluster
from tests.fix_broker import call, make_type, publish, rows, value
from tests.fix_clients import Client
from tests.fix_db import wait_until


def test_a_role_is_a_user_at_hosts_and_a_policy_looks_at_the_address(own_cluster: EmbeddedCluster) -> None:
    dsn = own_cluster.dsn()
    with psycopg.connect(dsn, autocommit=True) as admin:
        for role in ("hanson", "stranger"):
            rows(admin, f"create role {role} login")
        hba = Path(value(admin, "show hba_file"))
        hba.write_text(
            "local all postgres trust\nlocal all hanson trust\n"
            "host all hanson 127.0.0.0/8 trust\nhost all stranger 127.9.9.9/32 trust\nhost all stranger all reject\n"
        )
        rows(admin, "select pg_reload_conf()")
        over_tcp = make_conninfo(dsn, host="127.0.0.1")
        with pytest.raises(psycopg.OperationalError, match=r"pg_hba.conf rejects"):
            psycopg.connect(over_tcp, user="stranger")
        make_type(admin, "sensitive")
        policy = "(select bool_and(c.address <<= '127.0.0.0/8') from pgps.clients c where c.owner = current_user)"
        call(admin, "create_policy", "sensitive", "from_our_hosts", "hanson", policy)
        seen: list[list[list[int]]] = []
        for target in (dsn, over_tcp):
            with psycopg.connect(target, user="hanson", autocommit=True) as connection:
                client = Client(connection, "hanson")
                client.register("sensitive")
                publish(admin, "sensitive", len(seen))
                rows(admin, "select pgps.dispatch()")
                seen.append(client.taken())
                pid = connection.info.backend_pid
            # The client is connected for as long as its session lives, which ends a moment after this connection.
            gone = "select count(*) = 0 from pg_stat_activity where pid = %s"
            wait_until(partial(value, admin, gone, [pid]), what="the session has ended")
        assert seen == [[], [[1]]]
