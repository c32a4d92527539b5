"""Work that begins before the transaction ends which asks for it, and is thrown away if that rolls back.

After Hanson et al. 1994, section 3.2: a long transaction raises an event at
once, a program prepares what follows from it, and does nothing that cannot be
undone before the confirming event says that the transaction has committed.
"""

from __future__ import annotations

from pgps.client import Client

SCHEMA = """
    create table delivery_note (shipment integer primary key, text text);
    select pgps.create_event_type('shipment', 'number integer, goods text', visibility => 'immediate');
    select pgps.create_event_type('shipment_ended', 'event bigint, committed boolean');
    select pgps.advertise('shipment');
    select pgps.advertise('shipment_ended');
    select pgps.link_confirm_event('shipment_ended', 'shipment');
"""


def main(dsn: str) -> None:
    """Plan two shipments, one of which comes to nothing."""
    with Client(dsn, name="planner") as planner, Client(dsn, name="printer", poll=0.5) as printer:
        planner.execute(SCHEMA)
        with printer.identify("printer") as me:
            me.register("shipment*")
            prepared: dict[int, tuple[int, str]] = {}

            def next_event() -> str:
                """Handle one event: prepare, print, or throw away; return what was done."""
                event = me.get_event(timeout=30.0)
                assert event is not None
                tuple_ = event.first()
                if event.event_type == "shipment":
                    prepared[event.event_id] = (tuple_["number"], f"{tuple_['goods']}, handle with care")
                    me.commit_event()
                    return "prepared"
                number, text = prepared.pop(tuple_["event"])
                with printer.transaction() as connection:  # exactly once: the note, and that the event is done
                    if tuple_["committed"]:
                        connection.execute("insert into delivery_note values (%s, %s)", [number, text])
                    me.commit_event(connection=connection)
                return "printed" if tuple_["committed"] else "thrown away"

            for number, keep in ((1, True), (2, False)):
                try:
                    with planner.transaction() as connection:
                        planner.publish("shipment", {"number": number, "goods": "glass"}, connection=connection)
                        print(f"shipment {number}: {next_event()}, while it is still being planned")
                        if not keep:
                            raise RuntimeError("no lorry")
                except RuntimeError as error:
                    print(f"shipment {number}: {error}")
                print(f"shipment {number}: {next_event()}")
            me.disconnect()
        assert printer.execute("select shipment from delivery_note") == [(1,)]


if __name__ == "__main__":
    from broker import broker

    with broker() as dsn:
        main(dsn)
