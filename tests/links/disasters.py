"""What happens to servers and their files in a story: kill -9, backups, restores, copies, trimmed logs."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from tests.fix_broker import call, column, rows
from tests.links.chaos import SEGMENT, Backup, Plan, Story
from tests.links.fleet import Fleet, InterruptedCarry, Member, Site
from tests.links.oracle import gaps_of


class Disasters(Story):
    """A story in which everything may happen."""

    def members_of(self, site: Site) -> list[Member]:
        return [member for member in self.members.values() if member.site is site]

    def leave(self, *members: Member, commit: bool = True) -> None:
        """Close every session at some brokers."""
        for member in members:
            self.end_open(member.name, commit=commit)
        self.cut_all(*(member.name for member in members))

    def do_crash(self) -> None:
        """Kill a server with all its sessions while a batch is on its way, between two of its steps."""
        self.left["crash"] -= 1
        found = self.lane()
        if found is None:
            return
        pair, lane = found
        site = self.members[self.random.choice(pair)].site
        point = self.random.choice(["begin", "copy", "apply", "commit", "confirm"])

        def at(step: str) -> None:
            if step == point:
                site.cluster.kill9()
                raise InterruptedCarry

        self.carry_until(lane, at)
        there = self.members_of(site)
        for member in there:
            if member.name in self.open:
                self.open.pop(member.name)[0].close()
            member.admin.close()
        site.crash()
        for member in there:
            member.reopen()
        for broken in [p for p in self.up if any(self.members[name] in there for name in p)]:
            self.cut(broken)

    def quiet(self, member: Member) -> None:
        """Dispatch and receive all that is here, so that a copy of it has nothing under way."""
        self.end_open(member.name, commit=True)
        self.settle(member)
        for subscription in self.oracle.of(member.name):
            self.oracle.receive(member, subscription)

    def state_of(self, member: Member, database: str) -> Backup:
        self.quiet(member)
        return Backup(database, self.oracle.backup_of(member.name), member.identity()["epoch"], member.last_batch())

    def do_backup(self) -> None:
        """Copy a broker's database; a later copy takes the place of an earlier one."""
        member = self.some()
        if self.left["restore"] <= 0:
            return
        if member.name in self.backups:
            member.site.drop(self.backups[member.name].database)
        self.fleet.count += 1
        self.backups[member.name] = self.state_of(member, f"backup_{self.fleet.count}_{member.name}")
        self.leave(member)
        member.admin.close()
        member.site.copy(member.database, self.backups[member.name].database)
        member.reopen()

    def do_restore(self) -> None:
        """Put a broker back to its backup, in a database of its own: it knows that it is not what it was."""
        if not self.backups:
            return
        name = self.random.choice(sorted(self.backups))
        if self.site_backup is not None and self.members[name].site is self.site_backup[0]:
            return
        self.left["restore"] -= 1
        member, backup = self.members[name], self.backups[name]
        self.quiet(member)
        self.leave(member)
        member.admin.close()
        member.site.drop(member.database)
        member.site.copy(backup.database, member.database)
        member.reopen()
        assert member.identity()["state"] == "restored"
        pair = next(pair for pair in self.pairs if name in pair)
        with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState, match="restored or cloned"):
            self.raise_link(pair)
        self.resume(member, backup)

    def resume(self, member: Member, backup: Backup) -> None:
        """Go on in a new epoch; what was published before an administrator came belongs to it."""
        self.oracle.restored(member, backup.subscriptions, backup.epoch, backup.last_batch)
        for pair in list(self.old):
            if member.name in pair:
                del self.old[pair]
        if self.random.random() < 0.5:
            with member.admin.transaction():
                self.publish(member.admin)
            rows(member.admin, "select pgps.dispatch()")
        call(member.admin, "resume_links", "restored")
        self.oracle.resumed(member, is_new=False)
        self.oracle.note(member)
        # Links that were defined after the backup are defined again.
        for pair in self.pairs:
            if pair[0] == member.name:
                self.define(pair)

    def do_physical(self) -> None:
        """First copy the files of a stopped server; later put them back: all its brokers are what they were."""
        if self.site_backup is None:
            site = self.random.choice(self.fleet.sites)
            there = self.members_of(site)
            states = {member.name: self.state_of(member, member.database) for member in there}
            self.leave(*there)
            for member in there:
                member.admin.close()
            site.back_up()
            self.site_backup = site, states
        else:
            site, states = self.site_backup
            self.left["physical"] -= 1
            self.site_backup = None
            there = self.members_of(site)
            for member in there:
                self.quiet(member)
            self.leave(*there)
            for member in there:
                member.admin.close()
            site.put_back()
            self.forget_copies(site, states)
        for member in self.members_of(site):
            member.reopen()
        if self.site_backup is None:
            for member in self.members_of(site):
                self.resume(member, states[member.name])

    def forget_copies(self, site: Site, states: dict[str, Backup]) -> None:
        """Copies that were made after the files were copied are gone; no broker may have come since."""
        for name in [name for name in self.backups if self.members[name].site is site]:
            del self.backups[name]
        assert {member.name for member in self.members_of(site)} == set(states)

    def do_clone(self) -> None:
        """Copy a broker that lives on: the copy becomes a broker of its own, with links of its own."""
        if "g" in self.members or self.site_backup is not None:
            return
        self.left["clone"] -= 1
        original = self.some()
        self.quiet(original)
        self.leave(original)
        original.admin.close()
        twin = self.fleet.broker("g", site=original.site, template=original.database)
        original.reopen()
        self.members[twin.name] = twin
        self.oracle.cloned(original, twin, twin.last_batch())
        call(twin.admin, "resume_links", "clone")
        self.identify(twin)
        self.oracle.resumed(twin, is_new=True)
        self.oracle.note(twin)
        peers = self.random.sample([name for name in sorted(self.members) if name != "g"], 2)
        for name in peers:
            self.define((name, "g"))
            self.raise_link((name, "g"))

    def do_trim(self) -> None:
        """Let a broker's logs and ledgers go on in new segments, and reclaim those that nobody needs."""
        self.left["trim"] -= 1
        self.trim(self.some())

    def trim(self, member: Member) -> None:
        for sequence in ("event_id_seq", "shipment_id_seq", "arrival_id_seq"):
            name = f"pgps_internal.{sequence}"
            rows(
                member.admin, f"select setval('{name}', ((select last_value from {name}) / {SEGMENT} + 1) * {SEGMENT})"
            )
        for subscription in self.oracle.of(member.name):
            self.oracle.receive(member, subscription)
        rows(member.admin, "select pgps.reclaim(100)")

    # The end of a story

    def rest(self) -> None:
        """Raise all links, and let everything arrive."""
        for name in list(self.open):
            self.end_open(name, commit=True)
        for pair in self.pairs:
            if pair not in self.up:
                self.raise_link(pair)
        still = 0
        for _ in range(120):
            for member in self.members.values():
                self.settle(member)
            moved = [link.move() for link in self.up.values()]
            still = 0 if any(moved) else still + 1
            if still == 2:
                self.oracle.settled()
                return
        said: list[Any] = [(pair, link.out.batches[-1:], link.back.batches[-1:]) for pair, link in self.up.items()]
        raise AssertionError(f"the links do not come to rest: {said}")

    def check(self) -> None:
        for member in self.members.values():
            gaps = gaps_of(member, self.names)
            self.oracle.gaps += sum(len(found) for found in gaps.values())
            for subscription in self.oracle.of(member.name):
                self.oracle.receive(member, subscription)
                self.oracle.check(subscription, gaps, final=True)
            self.check_transactions(member)

    def check_transactions(self, member: Member) -> None:
        """Whole transactions together: what came of one batch of an origin is in one transaction here."""
        for name in ("tick", "tock"):
            split = column(
                member.admin,
                f"""
                select a.upto from pgps_internal.arrival a, unnest(a.ids) r, pgps_internal.{name}_log l
                where l.event_id >= lower(r) and l.event_id < upper(r)
                group by a.arrival_id, a.upto having count(distinct l.xid) > 1
                """,
            )
            assert not split, (member.name, name, split)

    def play(self) -> None:
        """Tell the story: rest, steps, rest, check; and once more, when all is quiet."""
        self.rest()
        for member in list(self.members.values()):
            self.do_subscribe(member)
        self.rest()
        for _ in range(self.plan.steps):
            self.step()
        self.rest()
        self.check()
        for member in self.members.values():
            for _ in range(3):
                with member.admin.transaction():
                    self.publish(member.admin)
        self.rest()
        self.check()


def tell(fleet: Fleet, seed: int, plan: Plan) -> Story:
    """Play the story of a seed; an assertion says which one it was."""
    story = Disasters(fleet, seed, plan)
    try:
        story.play()
    except BaseException as error:
        error.add_note(f"seed {seed}, {plan}, after {sum(story.done.values())} steps: {dict(story.done)}")
        raise
    finally:
        story.close()
        for backup in story.backups.values():
            for site in fleet.sites:
                site.drop(backup.database)
        fleet.clear()
    return story
