"""After the run: settle the exceptions and query the audit, in SQL as the people concerned would type it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, LiteralString

import psycopg
from psycopg import sql

from pgps_demo import scene
from pgps_demo.broker import Broker
from pgps_demo.expect import Expected

__all__ = ["Answer", "ask_exceptions", "audit", "count_by_symbol", "discard", "mend"]

_EXCEPTIONS: LiteralString = """\
select symbol, count(*) as events, max(attempts) as attempts, sqlstate, min(error) as error
from pgps_queue.stock_quote_exception where state = 'failed'
group by symbol, sqlstate order by symbol"""
_BY_SYMBOL: LiteralString = """\
select symbol, count(*) from pgps_queue.stock_quote_exception where state = %s group by symbol order by symbol"""
_MEND: LiteralString = "insert into trading.account values ({symbol})"
_RETRY: LiteralString = """\
select sum(pgps.retry_exception('stock_quote', event_id, 'settlement'))
from pgps_queue.stock_quote_exception where symbol = {symbol}"""
_DISCARD: LiteralString = "select pgps.discard_exception('stock_quote', subscription => 'settlement')"
_AUDIT_IN: LiteralString = """\
select publisher, count(*) as readings, count(distinct xid) as transactions,
    min(taken_at)::date as first, max(taken_at)::date as last, round(avg(glucose), 1) as "mg/dl"
from pgps_queue.glucose_reading_in group by publisher order by min(taken_at)"""
_AUDIT_OUT: LiteralString = """\
select subscription, state, count(*) as readings, max(attempts) as attempts
from pgps_queue.glucose_reading_out group by subscription, state order by subscription, state"""


@dataclass(frozen=True, slots=True)
class Answer:
    """A query that was asked, by whom, and what came back."""

    role: str
    query: str
    columns: list[str]
    rows: list[tuple[Any, ...]]

    def dicts(self) -> list[dict[str, Any]]:
        """Return the rows by column name."""
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]


def ask_exceptions(broker: Broker) -> Answer:
    """Ask the exception queue what failed."""
    return _ask(broker, "trader", _EXCEPTIONS)


def count_by_symbol(broker: Broker, state: str) -> dict[str, int]:
    """Count the exceptions in a state, by symbol."""
    with psycopg.connect(broker.dsn("trader")) as connection:
        return dict(connection.execute(_BY_SYMBOL, [state]).fetchall())


def mend(broker: Broker) -> list[Answer]:
    """Open the account that was missing, and put its events back."""
    return [_ask(broker, "trader", _filled(text)) for text in (_MEND, _RETRY)]


def discard(broker: Broker) -> Answer:
    """Discard what is left in the exception queue."""
    return _ask(broker, "trader", _DISCARD)


def audit(broker: Broker, expected: Expected) -> tuple[list[Answer], bool]:
    """Query the auditable queues as the auditor; also return whether they agree with what was worked out."""
    answers = [_ask(broker, "auditor", query) for query in (_AUDIT_IN, _AUDIT_OUT)]
    by_publisher = {row["publisher"]: row["readings"] for row in answers[0].dicts()}
    published = {name: count for name, count in expected.published.items() if name in scene.HOMES}
    delivered = {(row["subscription"], row["state"]): row["readings"] for row in answers[1].dicts()}
    wanted = {
        (each.subscription, "delivered"): each.count
        for each in expected.wanted
        if each.owner in {"hospital", "ward"} and each.count
    }
    return answers, by_publisher == published and delivered == wanted


def _filled(text: LiteralString) -> sql.Composed:
    return sql.SQL(text).format(symbol=sql.Literal(scene.MENDED))


def _ask(broker: Broker, role: str, query: LiteralString | sql.Composed) -> Answer:
    with psycopg.connect(broker.dsn(role)) as connection:
        cursor = connection.execute(query)
        text = query if isinstance(query, str) else query.as_string(connection)
        columns = [column.name for column in cursor.description or ()]
        return Answer(role, text, columns, cursor.fetchall() if columns else [])
