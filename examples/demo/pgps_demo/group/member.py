"""A member of the group: a program that has everything in its memory, and is killed without warning.

    python -m pgps_demo.group.member DSN GROUP NAME FILE [checkpoints EVERY MEMBERS]

It joins with a replay: the last checkpoint comes first, then the updates behind it, and then what is new. A message
for the entry point REPORT lets it write what it holds into FILE. One that makes checkpoints remembers what it held
after EVERY updates until all MEMBERS have come as far, since what a checkpoint contains is discarded for all of them.
In between it moves the replay pointer alone, so that a replay has updates behind the checkpoint.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import LiteralString

import psycopg
from psycopg.types.json import Jsonb

from pgps.client import Client
from pgps_demo.group.directory import CHECKPOINT, REPORT, Directory

__all__ = ["main"]

_AS_FAR: LiteralString = """
    select count(*) from pgps.group_members
    where group_name = %s and present and phase = 'new' and acked_seqn >= %s
"""


@dataclass
class Checkpoints:
    """Moves the replay pointer now and then, every second time with a checkpoint."""

    dsn: str
    group: str
    every: int
    members: int
    last: int = 0
    with_state: bool = True
    held: tuple[int, dict[str, str]] | None = None

    def note(self, seqn: int, directory: Directory) -> None:
        """Remember a state after a message, if it is time."""
        if self.held is None and seqn - self.last >= self.every:
            self.held = seqn, dict(directory.entries)

    def make(self) -> None:
        """Note in the spool how far all are; put the remembered state in front, and discard what it contains."""
        if self.held is None:
            return
        seqn, state = self.held
        with psycopg.connect(self.dsn) as connection:
            found = connection.execute(_AS_FAR, [self.group, seqn]).fetchone()
            if found is None or found[0] < self.members:
                return
            connection.execute("select pgps.spool_set_replay_pointer(%s, %s)", [self.group, seqn])
            if self.with_state:
                connection.execute(
                    "select pgps.prepend_and_discard(%s, %s, %s)", [self.group, CHECKPOINT, Jsonb(state)]
                )
        self.last, self.with_state, self.held = seqn, not self.with_state, None


@dataclass
class Member:
    """One life of a member."""

    directory: Directory = field(default_factory=Directory)
    replayed: int = 0
    new: int = 0

    def serve(self, dsn: str, group: str, name: str, file: Path, checkpoints: Checkpoints | None) -> None:
        """Take what comes, for ever."""
        with Client(dsn) as client, client.group(group, name, replay=True, prefetch=500) as me:
            while True:
                batch = me.receive(timeout=1.0)
                for message in batch:
                    if message.entry is None:
                        continue
                    if message.entry == REPORT:
                        self._report(file)
                    else:
                        self.directory.apply(message.entry, message.message)
                    self.replayed += message.in_replay
                    self.new += not message.in_replay
                    if checkpoints is not None and not message.in_replay:
                        checkpoints.note(message.seqn, self.directory)
                if batch:
                    me.ack(batch[-1])
                if checkpoints is not None:
                    checkpoints.make()

    def _report(self, file: Path) -> None:
        """Write what it holds, whole or not at all."""
        part = file.with_suffix(".part")
        part.write_text(json.dumps({"entries": self.directory.entries, "replayed": self.replayed, "new": self.new}))
        part.rename(file)


def main(arguments: list[str]) -> None:
    """Run a member until it is killed."""
    dsn, group, name, file, *more = arguments
    checkpoints = Checkpoints(dsn, group, int(more[1]), int(more[2])) if more else None
    Member().serve(dsn, group, name, Path(file), checkpoints)


if __name__ == "__main__":
    main(sys.argv[1:])
