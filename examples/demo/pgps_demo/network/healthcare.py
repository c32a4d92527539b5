"""The healthcare network of the paper's figure 2: who takes part, and what each domain must get of the raw data."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from dataclasses import dataclass, field

import psycopg
from psycopg.conninfo import make_conninfo

from pgps_demo.data import Data, Reading
from pgps_demo.expect import Key, Wanted
from pgps_demo.network.site import Server, Site, at_once

__all__ = ["FORMULARY", "LINKS", "PEOPLE", "PICTURE", "PROFESSIONS", "TABLES", "Healthcare", "Person", "expect"]

LINKS = (("home", "hospital"), ("hospital", "pharmacy"), ("hospital", "auditor"))
"""Who links to whom; the first of a pair defines the link, and its worker connects."""

PICTURE = """\
  home ──reading──▶ hospital ──dispensing──▶ pharmacy
                       └──prescription_record, anonymous_reading──▶ auditor"""


@dataclass(frozen=True, slots=True)
class Person:
    """A patient. Names and addresses are invented, and so are the numbers: 999 is for tests."""

    patient: int
    nhs_number: str
    name: str
    address: str
    consents: bool
    pseudonym: str
    prescriber: str
    pharmacy: str


PEOPLE = {
    person.patient: person
    for person in (
        Person(3, "999-000-3361", "Ada Winterbourne", "3 Orchard Lane", True, "P-7c41", "dr_grey", "pharmacy"),
        Person(4, "999-000-4274", "Bram Oldacre", "17 Mill Road", True, "P-05be", "dr_moss", "elsewhere"),
        Person(5, "999-000-5189", "Cora Thistlewood", "2 Station Row", True, "P-e9d3", "dr_grey", "pharmacy"),
        Person(6, "999-000-6023", "Dov Harrowgate", "41 Castle Hill", True, "P-3a60", "dr_moss", "pharmacy"),
        Person(7, "999-000-7750", "Edda Fairweather", "8 Ferry Street", False, "P-b81f", "dr_grey", "pharmacy"),
        Person(8, "999-000-8416", "Finn Marchbanks", "29 Tanner Court", True, "P-6d24", "dr_moss", "elsewhere"),
        Person(9, "999-000-9932", "Gail Underhill", "5 Priory Walk", True, "P-f207", "dr_grey", "pharmacy"),
        Person(10, "999-001-0508", "Hugo Penhaligon", "12 Quay Terrace", True, "P-48ca", "dr_moss", "pharmacy"),
    )
}
PROFESSIONS = {"home": "nurse", "hospital": "doctor", "pharmacy": "pharmacist", "auditor": "auditor"}
# Drug, from this glucose to that, dose, whether its prescriptions must be recorded.
FORMULARY = (
    ("glucagon", 0, 53, 1, True),
    ("dextrose", 54, 69, 15, False),
    ("insulin", 251, 1000, 4, True),
)
TABLES = {
    "assess": "select nhs_number, taken_at, glucose from hospital.chart order by arrival",
    "dispense": "select prescriber, nhs_number, drug, dose, prescribed_at from pharmacy.dispensed order by arrival",
    "keep": "select pseudonym, prescriber, drug, dose, glucose, prescribed_at from auditor.record order by arrival",
    "note": "select pseudonym, taken_at, glucose from auditor.reading order by arrival",
}


@dataclass(slots=True)
class Healthcare:
    """Four brokers on four servers."""

    sites: dict[str, Site] = field(
        default_factory=lambda: {name: Site(name, Server(name)) for name in ("home", "hospital", "pharmacy", "auditor")}
    )

    def start(self) -> None:
        """Start the servers, each with a database that has pgps."""
        at_once(lambda site: site.server.start(site.name), list(self.sites.values()))

    def build(self) -> None:
        """Make roles, tables, event types, policies and rules, each as the role it belongs to, and the links."""
        for name, site in self.sites.items():
            site.run(f"{name}_1")
            if name in ("home", "hospital"):
                site.run(f"{name}_2", PROFESSIONS[name])
            site.run(f"{name}_3", "broker_admin")
        self._fill()
        for name, site in self.sites.items():
            site.run(f"{name}_4", PROFESSIONS[name])
        for one, other in LINKS:
            conninfo = make_conninfo(self.sites[other].dsn(), user=f"{one}_link")
            query = "select pgps.create_link(%s, %s, role => %s)"
            self.sites[one].call(query, [other, conninfo, f"{other}_link"])

    def subscribe(self, name: str) -> None:
        """Let a domain subscribe; what it wants must have been advertised to it."""
        self.sites[name].run(f"{name}_5", PROFESSIONS[name])

    def _fill(self) -> None:
        with psycopg.connect(self.sites["home"].dsn("nurse")) as connection, connection.cursor() as cursor:
            cursor.executemany(
                "insert into home.patient values (%s, %s, %s, %s, %s)",
                [(p.patient, p.nhs_number, p.name, p.address, p.consents) for p in PEOPLE.values()],
            )
        with psycopg.connect(self.sites["hospital"].dsn("doctor")) as connection, connection.cursor() as cursor:
            # The hospital knows nothing of patients who do not consent.
            known = [(p.nhs_number, p.pseudonym, p.prescriber, p.pharmacy) for p in PEOPLE.values() if p.consents]
            cursor.executemany("insert into hospital.patient values (%s, %s, %s, %s)", known)
            cursor.executemany("insert into hospital.formulary values (%s, %s, %s, %s, %s)", FORMULARY)


def expect(data: Data) -> list[Wanted]:
    """Work out what each domain must get, in plain Python: no SQL, nothing of the broker."""
    charted = [reading for reading in data.readings if _is_charted(reading)]
    prescribed = list(_prescriptions(charted))
    return [
        Wanted("assess", "hospital", "glucose < 70 or > 180, with consent", {"home": [_charted(r) for r in charted]}),
        Wanted(
            "dispense",
            "pharmacy",
            "prescriptions of its own patients",
            {
                "hospital": [
                    (person.prescriber, person.nhs_number, drug, dose, at)
                    for person, drug, dose, _, at, _ in prescribed
                    if person.pharmacy == "pharmacy"
                ]
            },
        ),
        Wanted(
            "keep",
            "auditor",
            "controlled drugs, no patient's name",
            {
                "hospital": [
                    (person.pseudonym, person.prescriber, drug, dose, glucose, at)
                    for person, drug, dose, glucose, at, controlled in prescribed
                    if controlled
                ]
            },
        ),
        Wanted(
            "note",
            "auditor",
            "glucose < 60 or > 240, pseudonyms",
            {
                "hospital": [
                    (PEOPLE[r.patient].pseudonym, r.taken_at, r.glucose)
                    for r in charted
                    if r.glucose < 60 or r.glucose > 240
                ]
            },
        ),
    ]


def _is_charted(reading: Reading) -> bool:
    return PEOPLE[reading.patient].consents and (reading.glucose < 70 or reading.glucose > 180)


def _charted(reading: Reading) -> Key:
    return PEOPLE[reading.patient].nhs_number, reading.taken_at, reading.glucose


def _prescriptions(charted: list[Reading]) -> Iterator[tuple[Person, str, int, int, dt.datetime, bool]]:
    for reading in charted:
        for drug, lowest, highest, dose, controlled in FORMULARY:
            if lowest <= reading.glucose <= highest:
                yield PEOPLE[reading.patient], drug, dose, reading.glucose, reading.taken_at, controlled
