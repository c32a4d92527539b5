"""What the detector in the server reads and writes, each as one statement for a set."""

import contextlib
import json
from collections.abc import Iterable, Sequence
from time import monotonic
from typing import Any, Optional

from composite.bared import bare
from composite.codetime import MUCH_OF_STEP, TOO_LONG, TOO_SLOW, CodeTime
from composite.insertion import INSERT, INSERT_MADE, Statement, insertion_of, statement_of
from composite.limits import rows_in_portions
from composite.raised import RaisedError, is_fatal, is_too_large

DUE_KEYS = """
select distinct k.state_id, k.key
from unnest($1::bigint[], $2::bigint[], $3::bigint[]) w(state_id, since, upto)
join pgps_internal.composite_key k on k.state_id = w.state_id and k.due between w.since and w.upto"""

KEYS = """
select k.state_id, k.key, k.born, k.version, k.serial, k.clock::text as clock, k.ticked, k.due, k.live::text as live
from unnest($1::bigint[], $2::text[]) w(state_id, key)
cross join lateral (select n.* from pgps_internal.composite_key n
    where n.state_id = w.state_id and n.key = w.key order by n.row_id desc limit 1) k
where k.version > 0"""

# By range of serials, since rows of a key that count no more stay until their segment is truncated.
OPEN_ROWS = """
select w.state_id, w.key, o.node, o.slot, o.serial, o.data::text as data
from (select w.*, lower(r) as low, upper(r) as high
    from unnest($1::bigint[], $2::text[], $3::bigint[], $4::text[]) w(state_id, key, born, live)
    cross join lateral unnest(w.live::int8multirange) r offset 0) w
cross join lateral (select o.node, o.slot, o.serial, o.data from pgps_internal.composite_open o
    where o.state_id = w.state_id and o.key = w.key and o.serial >= w.low and o.serial < w.high
        and o.row_id >= w.born offset 0) o"""

HELD_ROWS = """
select o.state_id, o.key, o.node, o.slot, o.serial, o.start_at::text as start_at, o.data::text as data
from unnest($1::bigint[], $2::text[], $3::bigint[], $4::numeric[]) w(state_id, key, born, bound)
join pgps_internal.composite_open o on o.state_id = w.state_id and o.key = w.key and o.slot = -1
    and o.start_at >= w.bound and o.row_id >= w.born"""

STATEMENTS = """
select c.xid::text::bigint as xid, c.lo, c.hi, pgps_internal.microseconds(c.published_at) as published,
    (select o.name from pgps_internal.origin o where o.origin_id = c.origin_id) as origin,
    (select k.name from pgps_internal.client k where k.client_id = c.client_id
        and pg_has_role(c.publisher::oid, k.owner::oid, 'usage')) as client
from unnest($1::text[], $2::bigint[], $3::bigint[], $4::integer[]) w(xid, low, high, type_id)
join pgps_internal.control c on c.xid = w.xid::xid8 and c.hi >= w.low and c.lo <= w.high and c.type_id = w.type_id"""

# Sets in the select list are cheaper than functions in FROM, also to set up: there may be a thousand such statements.
WRITE_KEYS = """
insert into pgps_internal.composite_key (state_id, key, born, version, serial, clock, ticked, due, live)
select unnest($1::bigint[]), unnest($2::text[]), unnest($3::bigint[]), unnest($4::integer[]), unnest($5::bigint[]),
    unnest($6::numeric[]), unnest($7::bigint[]), unnest($8::bigint[]), unnest($9::int8multirange[])"""

WRITE_OPENED = """
insert into pgps_internal.composite_open (state_id, key, node, slot, serial, start_at, data)
select unnest($1::bigint[]), unnest($2::text[]), unnest($3::text[]), unnest($4::integer[]), unnest($5::bigint[]),
    unnest($6::numeric[]), unnest($7::json[])"""

# Whether much is stored out of line: a value of its own may be large then.
OPEN_IS_LARGE = """
select sum(pg_relation_size(c.reltoastrelid)) > 1000000 as value from pg_class c
where c.oid in ('pgps_internal.composite_open_0'::regclass, 'pgps_internal.composite_open_1'::regclass,
    'pgps_internal.composite_open_2'::regclass, 'pgps_internal.composite_open_3'::regclass)"""

WRITE_LATE = """
insert into pgps_internal.composite_late (composite_id, type_id, event_id, at, reason, noted_at)
select l.composite_id, t.type_id, l.event_id, pgps_internal.moment(l.at), l.reason, pgps_internal.clock()
from unnest($1::bigint[], $2::text[], $3::bigint[], $4::bigint[], $5::text[])
    l(composite_id, name, event_id, at, reason)
join pgps_internal.event_type t on t.name = l.name"""

WRITE_STEPS = """
insert into pgps_internal.composite_step as made (composite_id, share, state_id, batch_id, ordering, heard, idle_at,
    open, keys, detected, late, given_up, stepped_at)
select s.composite_id, s.share, s.state_id, s.batch_id, s.ordering, s.heard, pgps_internal.moment(s.idle), s.open,
    s.keys, s.detected, s.late, s.given_up, pgps_internal.clock()
from unnest($1::bigint[], $2::integer[], $3::bigint[], $4::bigint[], $5::jsonb[], $6::jsonb[], $7::bigint[],
    $8::bigint[], $9::bigint[], $10::bigint[], $11::bigint[], $12::bigint[])
    s(composite_id, share, state_id, batch_id, ordering, heard, idle, open, keys, detected, late, given_up)
returning made.composite_id, made.share, made.row_id"""

WRITE_ERRORS = """
update pgps_internal.composite c set last_error = n.error
from unnest($1::bigint[], $2::text[]) n(composite_id, error)
where c.composite_id = n.composite_id and n.error is distinct from c.last_error"""

GIVEN = """
select c.composite_id, c.given::text as given
from pgps_internal.composite c where c.composite_id = any ($1::bigint[])"""

INTERVALS = """
select pgps_internal.interval_types()::text as value"""
READING = """
select r.version, r.hits, r.ranges, r.alone from pgps_internal.reading($1, $2) r"""

PUBLISH = """
select pgps_internal.publish_found($1, row($2, $3, $4, $5, $6, $7, $8)::pgps_internal.detections, $9)"""
FAIL = """
select pgps_internal.fail_large($1, row($2, $3, $4, $5, $6, $7, null)::pgps_internal.detections, $8, $9)"""
# Common case: nobody else has drawn an id in between.
EVENT_IDS = """
select min(i.id) as first, max(i.id) as last,
    case when max(i.id) - min(i.id) + 1 > count(*) then array_agg(i.id) end as ids
from (select nextval('pgps_internal.event_id_seq') as id from generate_series(1, $1)) i"""
RECORD = "select pgps_internal.record($2, $3, $4, $1::oid::regrole, null, null, null, true, $5)"
DETECTIONS = ["bigint[]", "bigint[]", "bigint[]", "numeric[]", "numeric[]", "text[]"]

TAKES = "select $1::jsonb is null"

# The first call in a session makes the timer, which takes its time.
ALARM = "select pgps_internal.set_alarm($1)"
QUIET = "select pgps_internal.set_alarm(0), pg_sleep(0)"
# The same in a session that another one ends when it does not let itself be cancelled.
SLOT = "select pgps_internal.detection_slot() as slot"
MARKED = """
select pgps_internal.set_alarm($1),
    setval('pgps_internal.lane_mark_{slot}', pgps_internal.detection_mark($2, $1))"""
UNMARKED = """
select pgps_internal.set_alarm(0), setval('pgps_internal.lane_mark_{slot}', 1::bigint << 62), pg_sleep(0)"""

BYTES_AS_ONE = 10_000  # as many take as long as one more detection
SAFE = 16_000_000  # as many characters always fit into jsonb: a number of one takes twelve bytes there
PLANS_KEPT = 6000  # the statements of types and definitions that are gone go with the others


class TakenBackError(Exception):
    """End a subtransaction whose result is known, so that nothing else of it is left."""


class Queries:
    """Run statements; their plans stay with the session."""

    def __init__(self, db: Any, memory: dict[str, Any]) -> None:
        self.db = db
        self.plans: dict[str, Any] = memory.setdefault("plans", {})
        self.memory = memory
        self.about = 0  # whose filter or attributes are evaluated
        self.time = CodeTime(None)
        self.is_careful = False  # a step is done again since something has raised that may be no JSON

    def plan(self, text: str, types: list[str]) -> Any:
        """Return the plan of a statement."""
        plan = self.plans.get(text)
        if plan is None:
            if len(self.plans) > PLANS_KEPT:
                self.plans.clear()
            plan = self.plans[text] = self.db.prepare(text, types)
        return plan

    def rows(self, text: str, *columns: list[Any]) -> Any:
        """Return the rows of a statement whose parameters are arrays, each with the type that the text gives it."""
        types = [text.split(f"${number}::", 1)[1].split("]", 1)[0] + "]" for number in range(1, len(columns) + 1)]
        return self.plan(text, types).execute(list(columns))

    def value(self, text: str) -> Any:
        """Return the one value of a statement."""
        return self.plan(text, []).execute([])[0]["value"]

    def heed(self) -> None:
        """Let the server cancel what runs, which it does where it is asked something."""
        self.plan("select", []).execute([])

    def write(self, *sets: list[tuple[Any, ...]]) -> dict[tuple[int, int], int]:
        """Write keys, open occurrences, late events, errors and steps; return the number of the step of each share."""
        found: Any = ()
        for text, rows in zip((WRITE_KEYS, WRITE_OPENED, WRITE_LATE, WRITE_ERRORS, WRITE_STEPS), sets):
            for part in rows_in_portions(rows) if text is WRITE_OPENED else [rows] if rows else ():
                found = self.rows(text, *(list(column) for column in zip(*part)))
        return {(row["composite_id"], row["share"]): row["row_id"] for row in found}

    def given(self, composites: list[int]) -> dict[int, str]:
        """Return the arguments of definitions as JSON."""
        return {row["composite_id"]: row["given"] for row in self.rows(GIVEN, composites)} if composites else {}

    def intervals(self) -> list[str]:
        """Return the event types whose events have a beginning of their own."""
        found: list[str] = json.loads(self.value(INTERVALS))
        return found

    def reading(self, type_id: int, keys: str) -> tuple[str, str, str, str]:
        """Return how events of a type are read: what that depends on, the queries for hits, for ranges and for ids."""
        (row,) = self.plan(READING, ["integer", "jsonb"]).execute([type_id, keys])
        return row["version"], row["hits"], row["ranges"], row["alone"]

    def event_ids(self, count: int) -> Sequence[int]:
        """Return ids for so many events, in ascending order."""
        row = self.plan(EVENT_IDS, ["integer"]).execute([count])[0]
        return row["ids"] or range(row["first"], row["last"] + 1)

    def publish(self, job: dict[str, Any], ids: Sequence[int], columns: list[list[Any]]) -> Statement:
        """Publish what was detected of a composite event without attributes; return what is to be recorded.

        columns: start, end and detection in microseconds, both bounds as points, constituents.
        """
        parts, values = insertion_of(ids, columns)
        self.plan(INSERT.format(log=job["log"], **parts), ["bigint[]", *DETECTIONS]).execute(values)
        return statement_of(job, ids)

    def publish_made(
        self, job: dict[str, Any], names: list[str], ids: Sequence[int], columns: list[list[Any]], bound: list[str]
    ) -> list[Statement]:
        """Publish what was detected of a composite event with attributes of these names; return what is to be recorded.

        bound: what the names in the attributes stand for. Where attributes raise, detections are published one by one.
        """
        quoted = [self.db.quote_ident(name) for name in names]
        made = ", ".join(f"(i.made).{name}" for name in quoted)
        parts, values = insertion_of(ids, columns)
        text = INSERT_MADE.format(
            log=job["log"], names=", ".join(quoted), values=made, composite_id=job["composite_id"], **parts
        )
        plan = self.plan(text, ["bigint[]", *DETECTIONS, "text"])
        self.about = job["composite_id"]
        size = sum(map(len, columns[-1]))
        is_large = size > SAFE
        with self.time.of(job, len(ids) + (size // BYTES_AS_ONE if is_large else 0)) as end:
            try:
                with self.db.subtransaction():
                    self.alarm(end)
                    plan.execute([*values, "[" + ", ".join(bound) + "]"])
                    self.quiet(end)
            except self.db.SPIError as error:
                if self.is_late(end):
                    self.end_late("the attributes take too long")
                if is_fatal(error) or (is_large and is_too_large(error)):
                    raise
                self.publish_each(job, columns, bound)
                return []
        return [statement_of(job, ids)]

    def publish_each(self, job: dict[str, Any], columns: list[list[Any]], bound: list[str]) -> None:
        """Publish the detections of a composite event of which some have attributes that raise."""
        plan = self.plan(PUBLISH, ["bigint", *DETECTIONS, "text[]", "float8"])
        try:
            plan.execute([job["composite_id"], *columns, bound, self.time.left()])
        except self.db.SPIError as error:
            if error.sqlstate == TOO_LONG and "take too long" in str(error):
                self.end_late("the attributes take too long")
            raise

    def fail(self, job: dict[str, Any], columns: list[list[Any]], sqlstate: str, error: str) -> None:
        """File one detection that is too large to be published; its constituents are given without payloads."""
        self.plan(FAIL, ["bigint", *DETECTIONS, "text", "text"]).execute(
            [job["composite_id"], *columns, sqlstate, error]
        )

    def end_late(self, message: str) -> None:
        """End the step: code of the composite event has taken longer than it may."""
        hint = "Make it cheaper; see the setting dispatch_lane_timeout."
        state = self.time.sqlstate
        whose = ",".join(map(str, self.time.slowest())) if state == TOO_SLOW else None
        self.db.error(message, detail=whose, hint=hint, sqlstate=state)

    def end_too_slow(self, composite_id: int) -> None:
        """End the step: the composite events of an owner take too much of it."""
        self.db.error("what is to be detected takes too long", detail=str(composite_id), sqlstate=MUCH_OF_STEP)

    def record(self, statements: Iterable[Statement]) -> None:
        """Record what was published, for each owner at once."""
        by_owner: dict[int, list[Statement]] = {}
        for one in statements:
            by_owner.setdefault(one[0], []).append(one)
        for owner, group in by_owner.items():
            _, *columns = (list(column) for column in zip(*group))
            self.plan(RECORD, ["bigint", "integer[]", "bigint[]", "bigint[]", "boolean[]"]).execute([owner, *columns])

    def answers(self, job: dict[str, Any], asked: Any) -> dict[tuple[str, str], Any]:
        """Return what conditions say, each of a set of candidates; what raises is found by halving the set."""
        found: dict[tuple[str, str], Any] = {}
        by_text: dict[str, list[str]] = {}
        self.about = job.get("composite_id", 0)
        for text, given in asked:
            by_text.setdefault(text, []).append(given)
        for text, items in by_text.items():
            plan = self.plan(job["tests"][text], ["text"])
            with self.time.of(job, len(items)) as end:
                self.ask(plan, text, items, found, end)
        return found

    def rows_taken_back(self, plan: Any, values: list[Any], end: Optional[float] = None) -> Any:
        """Return the rows of a query that calls code of users', until a time; whatever else that has done is undone.

        A search_path that it leaves behind would hold for statements with other rights, a constraint that it defers
        would be checked with those of whoever commits.
        """
        rows: Any = ()
        with contextlib.suppress(TakenBackError), self.db.subtransaction():
            self.alarm(end)
            rows = plan.execute(values)
            self.quiet(end)
            raise TakenBackError
        return rows

    def ask(
        self, plan: Any, text: str, items: list[str], found: dict[tuple[str, str], Any], end: Optional[float] = None
    ) -> None:
        """Ask one condition of some candidates, until a time."""
        try:
            rows = self.rows_taken_back(plan, ["[" + ", ".join(items) + "]"], end)
        except self.db.SPIError as error:
            if self.is_late(end):
                self.end_late(f"the filter takes too long: {text}")
            if is_fatal(error):
                raise
            if len(items) == 1:
                found[text, items[0]] = self.answer_bared(plan, text, items[0], end, error)
                return
            half = len(items) // 2
            self.ask(plan, text, items[:half], found, end)
            self.ask(plan, text, items[half:], found, end)
            return
        for row in rows:
            found[text, items[row["pgps_n"] - 1]] = row["pgps_ok"]

    def answer_bared(self, plan: Any, text: str, item: str, end: Optional[float], error: Any) -> Any:
        """Return what a condition says of a candidate that has raised: of one that is no JSON without what is none."""
        if (error.sqlstate or "")[:2] == "22" and not self.takes(item):
            bared = bare(text, item, self.takes)
            if bared is not None:
                answers: dict[tuple[str, str], Any] = {}
                self.ask(plan, text, [bared], answers, end)
                return answers[text, bared]
        return RaisedError(str(error).replace("spiexceptions.", ""))

    def takes(self, value: str) -> bool:
        """Tell whether jsonb takes a JSON text."""
        try:
            with self.db.subtransaction():
                self.plan(TAKES, ["text"]).execute([value])
        except self.db.SPIError as error:
            if is_fatal(error):
                raise
            return False
        return True

    def slot(self) -> Optional[int]:
        """Return the slot of this session, where another one may look what it is about; None: it has none."""
        if "slot" not in self.memory:
            self.memory["slot"] = self.plan(SLOT, []).execute([])[0]["slot"]
        slot: Optional[int] = self.memory["slot"]
        return slot

    def alarm(self, end: Optional[float]) -> None:
        """Have this session cancelled at a time; None: never."""
        if end is None:
            return
        seconds, slot = max(end - monotonic(), 0.001), self.slot()
        if slot is None:
            self.plan(ALARM, ["float8"]).execute([seconds])
        else:
            self.plan(MARKED.format(slot=slot), ["float8", "bigint"]).execute([seconds, self.about])

    def is_late(self, end: Optional[float]) -> bool:
        """Tell, after an error, whether the time was over; it is cancelled no more."""
        try:
            self.quiet(end)
        except self.db.SPIError:
            # A cancellation that came when something else had failed already.
            if end is None or monotonic() < end:
                raise
            return True
        return end is not None and monotonic() >= end

    def quiet(self, end: Optional[float]) -> None:
        """Have it cancelled no more; a cancellation that came just before is noticed here."""
        if end is not None:
            slot = self.slot()
            self.plan(QUIET if slot is None else UNMARKED.format(slot=slot), []).execute([])
