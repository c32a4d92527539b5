"""The gas pipeline: sensors log the flow, a rule raises an event when it is low, a handler raises the pump's pressure.

After Hanson et al. 1994, section 3.2, figure 2. Sensors know nothing of the
rule, the rule knows nothing of the program that reacts.
"""

from __future__ import annotations

import threading

from pgps.client import Client, Occurrence

SCHEMA = """
    create table flow_log (at timestamptz default now(), sensor integer, pipeline text, flow_rate numeric);
    create table pump (pipeline text primary key, pressure numeric);
    insert into pump values ('main', 100);
    select pgps.create_event_type('low_main_flow', 'at timestamptz, flow_rate numeric');
    select pgps.advertise('low_main_flow');
    select pgps.create_rule('main_flow_test', 'flow_log', 'insert', 'low_main_flow', array['new.at', 'new.flow_rate'],
        condition => $$new.pipeline = 'main' and new.sensor = 100 and new.flow_rate < 500$$);
"""


def main(dsn: str) -> None:
    """Let the flow drop twice, and tell what the pump does."""
    raised = threading.Semaphore(0)

    with Client(dsn, name="pump") as client:
        client.execute(SCHEMA)

        def low_flow(event: Occurrence) -> None:
            for reading in event:  # one statement of a sensor may have logged many
                print(f"flow is {reading['flow_rate']}: more pressure")
                client.execute("update pump set pressure = pressure * 1.1 where pipeline = 'main'")
            raised.release()

        with client.identify("pump-control") as control:
            control.register("low_main_flow", mode="direct", handler=low_flow)
            control.start()
            with Client(dsn, name="sensors") as sensors:
                log = "insert into flow_log (sensor, pipeline, flow_rate) values (%s, %s, %s)"
                for sensor, pipeline, flow in (
                    (100, "main", 800),
                    (100, "main", 450),
                    (7, "main", 10),
                    (100, "main", 420),
                ):
                    sensors.execute(log, [sensor, pipeline, flow])
            for _ in range(2):
                assert raised.acquire(timeout=30)
        pressure = client.execute("select round(pressure, 2) from pump")[0][0]
        print(f"pressure is {pressure}")
        assert str(pressure) == "121.00"


if __name__ == "__main__":
    from broker import broker

    with broker() as dsn:
        main(dsn)
