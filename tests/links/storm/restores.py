"""Back up, restore and copy brokers and whole servers while a story runs."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

import psycopg

from tests.fix_broker import call, column, rows
from tests.links.storm.furniture import copied
from tests.links.storm.script import Pair, Step
from tests.links.storm.traffic import read_journal
from tests.links.storm.world import NOWHERE, Copy, NotYet, World

_PATIENCE = 8.0
_OF_THE_NEW_EPOCH = """
    select (r.payload ->> 'n')::bigint from pgps.receive(%s, 1000000) r where r.payload ->> 'home' = %s and exists (
        select from pgps_internal.delivery d join pgps_internal.origin o on o.is_self and o.to_batch is null
        where d.batch_id > o.from_batch and (r.event_id = any (d.event_ids) or r.event_id <@ d.ids))
"""


class Storm(World):
    """A network with all steps that a script may contain."""

    def do_backup(self, name: str) -> None:
        """Copy a broker's database while nobody publishes there."""
        with self.held(name), self._left(name, dispatched=True):
            copy = self._copy_of(name, f"backup_{self.members[name].database}")
            self.members[name].site.copy(self.members[name].database, copy.database)
        self.copies[name] = copy
        self._come_back(name)

    def do_restore(self, name: str) -> None:
        """Restore a broker from its copy, and let its links go on."""
        if name not in self.copies:
            raise NotYet("there is no backup")
        with self.held(name), self._left(name, dispatched=False):
            member = self.members[name]
            member.site.drop(member.database)
            member.site.copy(self.copies[name].database, member.database)
            self._limit(member)
            self._forget(name)
            self._resume(name)
        self._come_back(name)

    def do_backup_server(self, server: str) -> None:
        """Stop a server, copy its files, and start it again."""
        names = self.on(int(server))
        with self.held(*names):
            for name in names:
                self._wait_dispatched(name)
                self.copies[name] = self._copy_of(name, "")
                self.members[name].admin.close()
            self.fleet.sites[int(server)].back_up()
            for name in names:
                self._limit(self.members[name])

    def do_restore_server(self, server: str, how: str = "early") -> None:
        """Restore the files of a server; `late`: its workers run for a while before the restore is declared."""
        names = self.on(int(server))
        if any(name not in self.copies for name in names):
            raise NotYet("there is no backup")
        with self.held(*names):
            for name in names:
                self._admin(name)
                self.note_own(name)
                if how == "early":
                    self.crew.kill(name)
                self.members[name].admin.close()
            self.fleet.sites[int(server)].put_back()
            for name in names:
                self._limit(self.members[name])
                self._forget(name)
        if how == "late":
            # Nobody has told the brokers; what they publish and carry meanwhile is left to chance.
            time.sleep(2.0)
        with self.held(*names):
            for name in names:
                if how == "late":
                    # Events published since the restore may have been sent in the former epoch. Later events then count
                    # as those of another origin, and no order is promised between the two.
                    self.note_own(name)
                    self.truth.begin_era(name)
                self._resume(name)
                self.start_worker(name)

    def do_clone(self, original: str, name: str, *peers: str) -> None:
        """Copy a broker that goes on running: the copy becomes a broker of its own, with links of its own."""
        with self.held(original), self._left(original, dispatched=True):
            member = self.members[original]
            twin = self.fleet.broker(name, site=member.site, template=member.database)
        self._come_back(original)
        self.members[name] = twin
        self._limit(twin)
        call(twin.admin, "resume_links", "clone")
        twin.identify(f"00000000-0000-4000-9000-{(self.script.seed * 7907 + 17) % 16**12:012x}")
        rows(twin.admin, "truncate storm.journal")
        call(twin.admin, "subscribe", f"{name}_own", "t*")
        for twins in copied(self.subscriptions_at(original), name):
            twins.apart = (original, time.time())
            twins.sure = {key: at for key, at in twins.sure.items() if key[0] != original}
            self.subscriptions.append(twins)
        # The copy also has the links that the original has defined.
        for (low, high), state in list(self.links.items()):
            if low == original and state != "gone":
                self.links[name, high] = state
                if (low, high) in self.misled:
                    self.misled.add((name, high))
        for peer in peers:
            if (name, peer) not in self.links and peer != original and (peer, name) not in self.links:
                self._define((peer, name))
        self.start_worker(name)

    @contextlib.contextmanager
    def _left(self, name: str, *, dispatched: bool) -> Iterator[None]:
        """End all sessions of a database, and refuse new ones until the block ends."""
        self._admin(name)
        if dispatched:
            self._wait_dispatched(name)
        else:
            self.note_own(name)
        member = self.members[name]
        self.crew.kill(name)
        member.admin.close()
        with psycopg.connect(member.site.cluster.dsn(), autocommit=True) as base:
            rows(base, f'alter database "{member.database}" allow_connections false')
            rows(base, "select pg_terminate_backend(pid) from pg_stat_activity where datname = %s", [member.database])
            try:
                yield
            finally:
                rows(base, f'alter database "{member.database}" allow_connections true')

    def _come_back(self, name: str) -> None:
        self._limit(self.members[name])
        self.start_worker(name)

    def _wait_dispatched(self, name: str) -> None:
        """Wait until committed events are dispatched; else a restored broker would dispatch them a second time."""
        deadline = time.monotonic() + _PATIENCE
        while True:
            self.note_own(name)
            if not any(finding.home == name for finding in self.truth.never_handed_out()):
                return
            if time.monotonic() > deadline:
                raise NotYet(f"{name} has not dispatched what was committed there")
            time.sleep(0.05)

    def _copy_of(self, name: str, database: str) -> Copy:
        journal = {event.n for event in self.truth.events.values() if event.home == name}
        return Copy(database, copied(self.subscriptions_at(name), name), journal)

    def _forget(self, name: str) -> None:
        """Record the events and subscriptions that a broker lost by a restore."""
        kept = {event.n for event in read_journal(self.members[name])}
        self.truth.lost |= {n for n, event in self.truth.events.items() if event.home == name and n not in kept}
        self.truth.begin_era(name)
        others = [one for one in self.subscriptions if one.broker != name]
        self.subscriptions = others + copied(self.copies[name].subscriptions, name)

    def _resume(self, name: str) -> None:
        """Resume the links of a restored broker; they get the state that they had before the restore."""
        member = self.members[name]
        call(member.admin, "resume_links", "restored")
        self.note_own(name)
        fresh = rows(member.admin, _OF_THE_NEW_EPOCH, [f"{name}_own", name])
        self.truth.set_apart(name, {n for (n,) in fresh})
        for pair, state in list(self.links.items()):
            if name in pair and state == "gone":
                # The two sides of the link disagree whether it exists.
                self.do(Step(self.now, "drop_hard", pair))
            elif pair[0] == name:
                self._again(pair, state)

    def _again(self, pair: Pair, state: str) -> None:
        admin, link = self.members[pair[0]].admin, f"to_{pair[1]}"
        if link not in column(admin, "select name from pgps.links where defined_here"):
            call(admin, "create_link", link, self.members[pair[1]].dsn)
        where = NOWHERE if pair in self.misled else self.members[pair[1]].dsn
        call(admin, "alter_link", link, conninfo=where, enabled=state != "paused")
