"""Requests and answers as units of work, beside RabbitMQ and ActiveMQ with a PostgreSQL transaction.

The same twenty pairs as in `units`; the server also writes a row of its own for each request. With units of work
receiving, that row, the answer and both commits are one transaction. With RabbitMQ (persistent messages, publisher
confirms, acknowledgements, pika) and ActiveMQ (transacted sessions over STOMP, its JDBC store in PostgreSQL) the server
commits the row first, and then the broker's part, so that after a crash in between it is done twice.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bench.field import peers
from bench.field.plan import Plan
from bench.field.systems import activemq, rabbitmq
from bench.field.systems.base import database
from bench.figures import Figure, Target, compare
from bench.house import alternate, opened
from bench.units import MESSAGE, SERVICE, Units, Way, rate

if TYPE_CHECKING:
    from collections.abc import Iterator

    import psycopg

    from bench.house import House

TITLE = "units of work, 20 pairs"
_TABLE = "create table done (id bigint generated always as identity primary key, message bytea)"
_INSERT = "insert into done (message) values (%b)"
_WAIT = 0.5


def run(house: House) -> list[Figure]:
    """Measure it; a broker that cannot be fetched is left out."""
    figures = []
    try:
        peers.debian("rabbitmq-server")
        import pika  # noqa: F401, PLC0415 - of the benchmarks only

        with rabbitmq.broker() as (port, _), house.database("template1") as dsn:
            _table(dsn)
            version = peers.debian_version("rabbitmq-server")
            figures.append(_compare(house, Brokered(dsn, port, Rabbit), f"RabbitMQ {version}, publisher confirms"))
    except (peers.Missing, ImportError) as error:
        print(f"RabbitMQ is skipped: {error}")
    try:
        why = activemq.ActiveMQ().missing()
        if why is not None:
            raise peers.Missing(why)
        import stomp  # noqa: F401, PLC0415 - of the benchmarks only

        with database(house, Plan()) as known, activemq.broker(known) as (_, port, _, _):
            _table(known.admin)
            version = peers.debian_version("activemq")
            figures.append(_compare(house, Brokered(known.admin, port, Stomp), f"ActiveMQ {version}, JDBC store"))
    except (peers.Missing, ImportError) as error:
        print(f"ActiveMQ is skipped: {error}")
    return figures


def _table(dsn: str) -> None:
    with opened(dsn) as connection:
        connection.execute(_TABLE)


def _compare(house: House, brokered: Brokered, what: str) -> Figure:
    mine, theirs = [], []
    seconds = house.scale(6, 3)
    with house.database() as dsn:
        with opened(dsn) as connection:
            connection.execute(
                "select pgps.create_service(%s, %s, %s, store => 'broker', deferred => true)", list(SERVICE)
            )
        _table(dsn)
        for number in house.pairs():
            house.say(f"units: {what}")
            first, second = alternate(number, lambda: rate(Way(dsn, Working), seconds), lambda: rate(brokered, seconds))
            mine.append(first)
            theirs.append(second)
    note = f"against {what}, and a PostgreSQL transaction; requests answered a second, persistent"
    return compare(TITLE, mine, theirs, unit="/s", target=Target("at least", 3.0), note=note)


# ----------------------------------------------------------------------------------------------------------------------
# The ways to ask and to answer
# ----------------------------------------------------------------------------------------------------------------------


class Working(Units):
    """Units of work, with a row of the server's own in the same transaction."""

    def work(self) -> None:
        """Write it."""
        self.connection.execute(_INSERT, [MESSAGE])


@dataclass
class Brokered:
    """Where a broker and the server's database are."""

    dsn: str
    port: int
    party: type[Rabbit | Stomp]

    @contextlib.contextmanager
    def opened(self, number: int, *, serves: bool) -> Iterator[Rabbit | Stomp]:
        """Open a connection to the broker, and one to the database."""
        with opened(self.dsn) as connection:
            connection.prepare_threshold = 0
            with contextlib.closing(self.party(connection, self.port, number, serves=serves)) as party:
                yield party


class Rabbit:
    """Parties of RabbitMQ: durable queues, persistent messages, each publication confirmed."""

    def __init__(self, database: psycopg.Connection, port: int, number: int, *, serves: bool) -> None:
        import pika  # noqa: PLC0415 - of the benchmarks only

        self.database = database
        self.connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port, heartbeat=0))
        self.channel = self.connection.channel()
        self.channel.confirm_delivery()
        self.channel.basic_qos(prefetch_count=1)
        self.answers = f"answer {number}"
        self.inbox: list[tuple[Any, Any]] = []
        for name in ("request", self.answers):
            self.channel.queue_declare(name, durable=True)
        self.channel.basic_consume("request" if serves else self.answers, self._came)

    def _came(self, _channel: object, method: Any, properties: Any, _body: bytes) -> None:
        self.inbox.append((method.delivery_tag, properties.reply_to))

    def _send(self, to: str, reply_to: str | None) -> None:
        import pika  # noqa: PLC0415 - of the benchmarks only

        properties = pika.BasicProperties(delivery_mode=2, reply_to=reply_to)
        self.channel.basic_publish("", to, MESSAGE, properties, mandatory=True)

    def ask(self) -> str:
        """Publish a request; returns when it is confirmed."""
        self._send("request", self.answers)
        return ""

    def answer(self) -> bool:
        """Answer a request, if one has come."""
        if not self.inbox:
            return False
        tag, reply_to = self.inbox.pop(0)
        with self.database.transaction():
            self.database.execute(_INSERT, [MESSAGE])
        self._send(reply_to, None)
        self.channel.basic_ack(tag)
        return True

    def receive(self, _asked: str) -> bool:
        """Acknowledge the answer, if it has come."""
        if not self.inbox:
            return False
        self.channel.basic_ack(self.inbox.pop(0)[0])
        return True

    def wait(self) -> None:
        """Wait for a message."""
        self.connection.process_data_events(_WAIT)

    def close(self) -> None:
        """Give back what was not handled."""
        self.connection.close()


class Stomp:
    """Parties of ActiveMQ: transactions of the broker, whose commits are answered."""

    def __init__(self, database: psycopg.Connection, port: int, number: int, *, serves: bool) -> None:
        import stomp  # noqa: PLC0415 - of the benchmarks only

        self.database = database
        self.answers = f"/queue/answer{number}"
        self.inbox: queue.Queue[tuple[str, str]] = queue.Queue()
        self.next: tuple[str, str] | None = None
        self.receipts: dict[str, threading.Event] = {}
        self.count = 0
        self.connection = stomp.Connection12([("127.0.0.1", port)], heartbeats=(0, 0))
        self.connection.set_listener("", self)
        self.connection.connect(wait=True)
        self.connection.subscribe(
            "/queue/request" if serves else self.answers, id="1", ack="client-individual",
            headers={"activemq.prefetchSize": "1"},
        )  # fmt: skip

    def __getattr__(self, name: str) -> Any:
        """Listen to nothing else."""
        if name.startswith("on_"):
            return lambda *_: None
        raise AttributeError(name)

    def on_message(self, frame: Any) -> None:
        """Keep what comes, in the thread that reads."""
        self.inbox.put((frame.headers["ack"], frame.headers.get("answer-to", "")))

    def on_receipt(self, frame: Any) -> None:
        """Wake who waits for a commit; disconnecting has a receipt, too."""
        done = self.receipts.pop(frame.headers["receipt-id"], None)
        if done is not None:
            done.set()

    def _commit(self, *, ack: str | None = None, to: str | None = None) -> None:
        """Acknowledge and send in one transaction of the broker."""
        transaction = self.connection.begin()
        if ack is not None:
            self.connection.ack(ack, transaction=transaction)
        if to is not None:
            self.connection.send(
                to, MESSAGE.decode(), headers={"persistent": "true", "answer-to": self.answers}, transaction=transaction
            )
        self.count += 1
        receipt, done = f"r{self.count}", threading.Event()
        self.receipts[receipt] = done
        self.connection.commit(transaction, receipt=receipt)
        if not done.wait(60):
            raise TimeoutError("the broker does not commit")

    def _taken(self) -> tuple[str, str] | None:
        if self.next is None:
            with contextlib.suppress(queue.Empty):
                return self.inbox.get_nowait()
        taken, self.next = self.next, None
        return taken

    def ask(self) -> str:
        """Send a request; returns when it is committed."""
        self._commit(to="/queue/request")
        return ""

    def answer(self) -> bool:
        """Answer a request, if one has come."""
        taken = self._taken()
        if taken is None:
            return False
        with self.database.transaction():
            self.database.execute(_INSERT, [MESSAGE])
        self._commit(ack=taken[0], to=taken[1])
        return True

    def receive(self, _asked: str) -> bool:
        """Acknowledge the answer, if it has come."""
        taken = self._taken()
        if taken is None:
            return False
        self._commit(ack=taken[0])
        return True

    def wait(self) -> None:
        """Wait for a message."""
        with contextlib.suppress(queue.Empty):
            self.next = self.inbox.get(timeout=_WAIT)

    def close(self) -> None:
        """Give back what was not handled."""
        self.connection.disconnect()


def steps(house: House) -> int:
    """Return how many times the progress advances."""
    return 2 * house.runs
