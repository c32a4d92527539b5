"""Search for data that a domain may not have: in every row of its database and every byte of its server's files."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql

from pgps_demo.network.healthcare import FORMULARY, PEOPLE, Healthcare
from pgps_demo.network.site import Site

__all__ = ["Finding", "search"]

_TABLES = """
    select n.nspname, c.relname from pg_class c join pg_namespace n on n.oid = c.relnamespace
    where c.relkind in ('r', 'm') and n.nspname !~ '^pg_' and n.nspname <> 'information_schema' order by 1, 2
"""
_ATTRIBUTES = """
    select count(*) from pg_attribute a
    join pg_class c on c.oid = a.attrelid join pg_namespace n on n.oid = c.relnamespace
    where n.nspname !~ '^pg_' and n.nspname <> 'information_schema' and a.attname = any (%s)
"""


@dataclass(frozen=True, slots=True)
class Finding:
    """How often something is in a domain that may not have it, and, for comparison, in one that may."""

    domain: str
    what: str
    of: str
    rows: int
    bytes: int
    attributes: int
    elsewhere: str
    there: int

    @property
    def ok(self) -> bool:
        """Return whether it is absent here, while the same search finds it in the domain that may have it."""
        return not (self.rows or self.bytes or self.attributes) and self.there > 0

    def dict(self) -> dict[str, Any]:
        """Return it for programs."""
        return {**asdict(self), "ok": self.ok}


@dataclass(frozen=True, slots=True)
class _Secret:
    domain: str
    what: str
    of: str
    texts: Sequence[str]
    elsewhere: str
    attributes: Sequence[str] = ()


def _secrets() -> list[_Secret]:
    people = PEOPLE.values()
    numbers = [p.nhs_number for p in people]
    persons = [text for p in people for text in (p.name, p.address)]
    refused = [p.nhs_number for p in people if not p.consents]
    others = [p.nhs_number for p in people if p.pharmacy != "pharmacy"]
    free = [drug for drug, *_, controlled in FORMULARY if not controlled]
    sensor, symptom = ["isig"], ["isig", "glucose", "symptom"]
    return [
        _Secret("hospital", "names and addresses, sensor signals", "attributes", persons, "home", sensor),
        _Secret("hospital", "who does not consent", "rows", refused, "home"),
        _Secret("pharmacy", "names, pseudonyms, glucose", "attributes", persons, "home", [*symptom, "pseudonym"]),
        _Secret("pharmacy", "patients of other pharmacies", "rows", others, "hospital"),
        _Secret(
            "auditor", "names and NHS numbers", "attributes", [*persons, *numbers], "home", [*sensor, "nhs_number"]
        ),
        _Secret("auditor", "drugs that are not controlled", "rows", free, "hospital"),
    ]


def search(network: Healthcare) -> tuple[list[Finding], dict[str, dict[str, int]]]:
    """Look for all that is withheld; return also how much was searched in each domain."""
    corpora = {name: _Corpus.of(site) for name, site in network.sites.items()}
    findings = [
        Finding(
            secret.domain,
            secret.what,
            secret.of,
            corpora[secret.domain].in_rows(secret.texts),
            corpora[secret.domain].in_files(secret.texts),
            _attributes(network.sites[secret.domain], secret.attributes),
            secret.elsewhere,
            corpora[secret.elsewhere].in_rows(secret.texts),
        )
        for secret in _secrets()
    ]
    return findings, {name: corpus.size() for name, corpus in corpora.items()}


@dataclass(frozen=True, slots=True)
class _Corpus:
    """All data of a domain: the rows of all tables, also those of pgps, and all files of its server."""

    tables: list[bytes]
    files: list[Path]

    @classmethod
    def of(cls, site: Site) -> _Corpus:
        tables = list[bytes]()
        with psycopg.connect(site.dsn(), autocommit=True) as connection:
            connection.execute("checkpoint")
            for schema, table in connection.execute(_TABLES).fetchall():
                query = sql.SQL("copy {} to stdout").format(sql.Identifier(schema, table))
                with connection.cursor().copy(query) as copy:
                    tables.append(b"".join(copy))
        return cls(tables, sorted((site.server.cluster.directory / "data").rglob("*")))

    def in_rows(self, texts: Sequence[str]) -> int:
        return sum(_count(table, texts) for table in self.tables)

    def in_files(self, texts: Sequence[str]) -> int:
        return sum(_count(_content(path), texts) for path in self.files)

    def size(self) -> dict[str, int]:
        return {
            "tables": len(self.tables),
            "rows": sum(table.count(b"\n") for table in self.tables),
            "bytes": sum(len(_content(path)) for path in self.files),
        }


def _content(path: Path) -> bytes:
    # A running server may remove a file while it is searched.
    with contextlib.suppress(FileNotFoundError):
        if path.is_file():
            return path.read_bytes()
    return b""


def _count(part: bytes, texts: Sequence[str]) -> int:
    return sum(part.count(text.encode()) for text in texts)


def _attributes(site: Site, names: Sequence[str]) -> int:
    with psycopg.connect(site.dsn()) as connection:
        row = connection.execute(_ATTRIBUTES, [list(names)]).fetchone()
    assert row is not None
    return int(row[0])
