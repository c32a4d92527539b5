"""The client of the paper's appendix: it polls, keeps its state as a checkpoint at the broker, and survives a crash.

After Hanson et al. 1994, appendix A. What it has counted is stored in the
same transaction as the completion of the event that it counted.
"""

from __future__ import annotations

import json

from pgps.client import Client

SCHEMA = """
    select pgps.create_event_type('alert', 'place text, level integer');
    select pgps.advertise('alert');
"""


class CrashError(Exception):
    """The program dies here."""


def run(dsn: str, *, crash_at: int | None) -> dict[str, int]:
    """Be client1 until nothing comes any more; return how many alerts there were at each place."""
    with Client(dsn, poll=0.5) as client, client.identify("client1") as me:
        seen: dict[str, int] = json.loads(me.state.event_checkpoint or b"{}")
        me.register("alert")
        me.set_event_state(lambda: json.dumps(seen).encode())

        if me.state.last_received_event != me.state.last_committed_event:
            # It died between receiving and completing: the event is handled again.
            event = me.re_receive_event()
        else:
            event = me.get_event("alert", timeout=5.0)
        while event is not None:
            place = event.first()["place"]
            print(f"alert at {place} (attempt {event.attempt})")
            if len(seen) == crash_at:
                raise CrashError
            seen[place] = seen.get(place, 0) + 1
            me.commit_event()
            event = me.get_event("alert", timeout=1.0)
        me.disconnect()
        return seen


def main(dsn: str) -> None:
    """Crash once; nothing is lost, nothing is counted twice."""
    with Client(dsn) as client:
        client.execute(SCHEMA)
        with client.identify("client1") as me:
            me.register("alert")
        for place in ("bridge", "tower", "bridge"):
            client.publish("alert", {"place": place, "level": 3})
    try:
        run(dsn, crash_at=1)
    except CrashError:
        print("-- crashed and restarted")
    seen = run(dsn, crash_at=None)
    assert seen == {"bridge": 2, "tower": 1}, seen
    print(seen)


if __name__ == "__main__":
    from broker import broker

    with broker() as dsn:
        main(dsn)
