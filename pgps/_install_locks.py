"""What an installer locks, and how it gives way to those who are at work in the meantime."""

from __future__ import annotations

import random
import time

import psycopg

__all__ = ["IN_THE_WAY", "PATIENCE", "give_way", "lock", "stop_others"]

# For another installer, which may be at work in any database of the server.
_LOCK_TIMEOUT = "600s"
PATIENCE = 60.0
IN_THE_WAY = ("55P03", "40P01")
# What was read was dropped before it was locked: its name leads nowhere, or is only a number any more.
_GONE = (psycopg.errors.UndefinedTable, psycopg.errors.SyntaxError)

# The endpoints, and the tables and views of the broker itself; whoever uses others, of one event type, uses these, too.
# LOCK TABLE of a view would lock all that the view reads, and so the server's own catalogs: nobody could connect to any
# database of the server, and whoever has read pg_roles in a transaction anywhere would stop the upgrade.
_LOCK_ALL = """
do $$
declare
    v_each record;
begin
    for v_each in
        select c.oid::regclass as name, c.relkind = 'v' as is_view, c.relowner::regrole as owner
        from pg_class c join pg_namespace n on n.oid = c.relnamespace
        where c.relkind in ('r', 'p', 'v') and (n.nspname in ('pgps_event', 'pgps', 'pgps_entry')
            or n.nspname = 'pgps_internal' and not exists (select from pgps_internal.event_type t
                where c.relname = any (array[t.name || '_log', t.name || '_kept', t.name || '_audit',
                    t.name || '_stage', t.name || '_entry'])))
        order by n.nspname <> 'pgps_event', c.relkind = 'v', random()
    loop
        if v_each.is_view then
            -- Changes nothing, and locks the view alone as a revision would.
            execute format('alter view %s owner to %s', v_each.name, v_each.owner);
        else
            execute format('lock table %s in access exclusive mode', v_each.name);
        end if;
    end loop;
end
$$
"""


def lock(connection: psycopg.Connection) -> None:
    """Wait for other installers, and settle what the scripts meet, until the transaction ends.

    Roles belong to the whole cluster, and two of its databases may be installed at once; hence the lock on pg_authid.
    In this mode only a superuser can hold it. In a stronger mode, anybody who changes their own password could make
    installers wait.
    """
    connection.execute(f"set local lock_timeout = '{_LOCK_TIMEOUT}'".encode())
    connection.execute("set local client_min_messages = warning")
    connection.execute("set local search_path = pg_catalog")
    connection.execute("lock table pg_catalog.pg_authid in share update exclusive mode")


def give_way(connection: psycopg.Connection) -> None:
    """See to it that in a deadlock the installer fails, and not a publisher.

    If the installer is the last to wait, its short deadlock_timeout makes it find the deadlock first. If another
    session is, the lock_timeout of the installer ends before that session looks for a deadlock.
    """
    connection.execute(
        """
        select set_config('lock_timeout', greatest(extract(epoch from t) * 600, 10)::integer::text, true),
               set_config('deadlock_timeout', '10ms', true)
        from (select current_setting('deadlock_timeout')::interval as t) t
        """
    )


def stop_others(connection: psycopg.Connection, patience: float) -> None:
    """Take what the revisions will want for themselves, all of it at once, before anything has changed.

    The event types come first, since a publisher that waits there holds nothing yet. A transaction that publishes
    several may stand between two of them; then all locks are released, and the next attempt takes another order, for
    `patience` seconds.
    """
    until = time.monotonic() + patience
    while True:
        try:
            with connection.transaction():
                connection.execute(_LOCK_ALL)
        except (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected, *_GONE):
            if time.monotonic() > until:
                raise
            time.sleep(random.uniform(0.01, 0.05))  # noqa: S311
        else:
            return
