"""The six databases of the paper's figure 5: who is linked to whom, and what its text says each of them stores.

    App_1 ─ DB_1 ─┐               ┌─ DB_5
                  DB_3 ─── DB_4 ──┤
            DB_2 ─┘ └─ App_3      └─ DB_6

The figure itself is not part of the text; these links are those that agree with what the text says.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from decimal import Decimal

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

from pgps_demo.data import Data, Quote
from pgps_demo.expect import Key, Wanted
from pgps_demo.network.site import Server, Site

__all__ = ["COVERED", "LINKS", "PICTURE", "STAGES", "TABLES", "Figure5", "Stage", "crossing", "expect", "home_of"]

PICTURE = """\
  App_1 ── DB_1 ──┐                 ┌── DB_5
                  ├── DB_3 ── DB_4 ─┤
  (rule)── DB_2 ──┘    │            └── DB_6 (callback)
                     App_3"""
TEMPLATE = "figure_5"
DATABASES = tuple(f"db_{number}" for number in range(1, 7))
LINKS = (("db_1", "db_3"), ("db_2", "db_3"), ("db_3", "db_4"), ("db_4", "db_5"), ("db_4", "db_6"))
TABLES = {
    "s_6": "select symbol, day, volume from app.received where subscription = 's_6' order by arrival",
    "s_3": "select symbol, day, volume from app.received where subscription = 's_3' order by arrival",
    "s_3_high": "select symbol, day, volume from app.received where subscription = 's_3_high' order by arrival",
}

S_6 = "volume > 20000000"
S_3 = "close < open * 0.97"
COVERED = "volume > 60000000"


@dataclass(frozen=True, slots=True)
class Stage:
    """One step of the text, and what each database has stored after it.

    `advertised` says by which neighbours a database has heard that the type
    is published; `filters` which filters it has of which neighbour.
    """

    name: str
    says: str
    advertised: dict[str, set[str]]
    filters: dict[tuple[str, str], set[str]]


_A_1 = {"db_2": {"db_3"}, "db_3": {"db_1"}, "db_4": {"db_3"}, "db_5": {"db_4"}, "db_6": {"db_4"}}
# In the paper only DB_3 stores a_2. Here DB_1 hears of it, too, because a subscription at DB_1 would need it.
_A_2 = {**_A_1, "db_3": {"db_1", "db_2"}, "db_1": {"db_3"}}
_S_6 = {("db_4", "db_6"): {S_6}, ("db_3", "db_4"): {S_6}, ("db_1", "db_3"): {S_6}, ("db_2", "db_3"): {S_6}}
_S_3 = {**_S_6, ("db_1", "db_3"): {S_6, S_3}, ("db_2", "db_3"): {S_6, S_3}}

STAGES = (
    Stage("a_1", "App_1 advertises t at DB_1: flooded to, and stored by, DB_2-6", _A_1, {}),
    Stage("a_2", "DB_2 advertises t: of the others only DB_3 has a new path to store", _A_2, {}),
    Stage("s_6", f"DB_6 subscribes ({S_6}): on the reverse paths, stored by DB_1-4", _A_2, _S_6),
    Stage("s_3", f"App_3 subscribes at DB_3 ({S_3}): stored by DB_1 and DB_2", _A_2, _S_3),
    Stage("covered", f"App_3 subscribes again ({COVERED}): s_6 covers it, nothing is sent", _A_2, _S_3),
)


@dataclass(slots=True)
class Figure5:
    """Six brokers in databases of one server, each with a worker of its own."""

    server: Server = field(default_factory=lambda: Server("figure-5"))
    sites: dict[str, Site] = field(init=False)

    def __post_init__(self) -> None:
        self.sites = {name: Site(name, self.server) for name in DATABASES}

    def start(self) -> None:
        """Start the server, install pgps once, and copy that database."""
        self.server.start(TEMPLATE)
        Site(TEMPLATE, self.server).run("figure_5_1")
        with self.server.cluster.connect() as connection:
            for name in DATABASES:
                copy = sql.SQL("create database {} template {}").format(sql.Identifier(name), sql.Identifier(TEMPLATE))
                connection.execute(copy)

    def build(self) -> None:
        """Make the event type where it is published, and the links; start the workers."""
        for name in ("db_1", "db_2"):
            self.sites[name].run("figure_5_2", "broker_admin")
        for one, other in LINKS:
            conninfo = make_conninfo(self.sites[other].dsn(), user="peer")
            self.sites[one].call("select pgps.create_link(%s, %s, role => 'peer')", [other, conninfo])
        for site in self.sites.values():
            site.start_worker()

    def do(self, stage: Stage) -> None:
        """Do the steps of the paper's text."""
        if stage.name == "a_1":
            self.sites["db_1"].call("select pgps.advertise('quote')", role="app")
        elif stage.name == "a_2":
            self.sites["db_2"].run("figure_5_3", "app")
        elif stage.name == "s_6":
            self.allow("db_6")
            self.sites["db_6"].run("figure_5_4", "app")
            query = "select pgps.subscribe('s_6', 'quote', %s, scope => 'global', execute => 'app.note')"
            self.sites["db_6"].call(query, [S_6], role="app")
        else:
            self.allow("db_3")
            name, wanted = ("s_3", S_3) if stage.name == "s_3" else ("s_3_high", COVERED)
            self.sites["db_3"].call(
                "select pgps.subscribe(%s, 'quote', %s, scope => 'global')", [name, wanted], role="app"
            )

    def allow(self, name: str) -> None:
        """Let applications subscribe to the type that a link has made."""
        with psycopg.connect(self.sites[name].dsn()) as connection:
            connection.execute("grant select on pgps_event.quote to app")


def expect(data: Data) -> list[Wanted]:
    """Work out what each subscription must get, in plain Python."""
    return [
        Wanted("s_6", "DB_6", S_6, _choose(data, [_s_6])),
        Wanted("s_3", "App_3", S_3, _choose(data, [_s_3])),
        Wanted("s_3_high", "App_3", COVERED, _choose(data, [lambda quote: quote.volume > 60_000_000])),
    ]


def crossing(data: Data) -> dict[tuple[str, str], int]:
    """Work out how many events must cross each link: each that is wanted behind it, once."""
    counts = {pair: 0 for one, other in LINKS for pair in ((one, other), (other, one))}
    to_3 = _choose(data, [_s_6, _s_3])
    counts["db_1", "db_3"], counts["db_2", "db_3"] = len(to_3["db_1"]), len(to_3["db_2"])
    counts["db_3", "db_4"] = counts["db_4", "db_6"] = sum(map(len, _choose(data, [_s_6]).values()))
    return counts


def _s_6(quote: Quote) -> bool:
    return quote.volume > 20_000_000


def _s_3(quote: Quote) -> bool:
    return quote.close < quote.open * Decimal("0.97")


def _choose(data: Data, wants: Sequence[Callable[[Quote], bool]]) -> dict[str, list[Key]]:
    chosen: dict[str, list[Key]] = {"db_1": [], "db_2": []}
    for quote in data.quotes:
        if any(wants_it(quote) for wants_it in wants):
            chosen[home_of(quote)].append((quote.symbol, quote.day, quote.volume))
    return chosen


def home_of(quote: Quote) -> str:
    """Return which database publishes a quote."""
    return "db_2" if quote.publisher == "nyse" else "db_1"
