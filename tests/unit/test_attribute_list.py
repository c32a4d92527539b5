"""The list of an event type's attributes: columns as in CREATE TABLE, and nothing else."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "sql" / "python"))
SqlTextError = importlib.import_module("lexer").SqlTextError
parse_attributes = importlib.import_module("attribute_list").parse_attributes


@pytest.mark.parametrize(
    ("text", "normal", "names"),
    [
        ("", "", []),
        (" -- nothing\n", "", []),
        ("a int", "a int", ["a"]),
        ('A INT, "A" Text , "a b" "char"', 'a int, "A" text, "a b" "char"', ["a", "A", "a b"]),
        ("s text not null,-- why\n p numeric(12,2)/* ) */ check (p>0)",
         "s text not null, p numeric(12, 2) check (p > 0)", ["s", "p"]),
        ("at timestamp(3) with time zone default now() at time zone 'utc' not null",
         "at timestamp(3) with time zone default now() at time zone 'utc' not null", ["at"]),
        ("a double precision, b character varying(3)[], c int array[3], d public.\"Mood\"[][2], e bit varying(5)",
         "a double precision, b character varying(3)[], c int array[3], d public.\"Mood\"[][2], e bit varying(5)",
         ["a", "b", "c", "d", "e"]),
        ("f interval day to second(3) default '1 s', g geometry(point, 4326), h pg_catalog.char",
         "f interval day to second(3) default '1 s', g geometry(point, 4326), h pg_catalog.\"char\"", ["f", "g", "h"]),
        ("b text default $$x;$$ || E'\\\\', d text default 'a\\'",
         "b text default 'x;' || E'\\\\', d text default E'a\\\\'", ["b", "d"]),
        ("a text collate pg_catalog.\"C\" default 'x' check (a <> b), check (a is null or b is not null)",
         "a text collate pg_catalog.\"C\" default 'x' check (a <> b), check (a is null or b is not null)", ["a"]),
        ("a int default case when true then null else 1 end null, b bool default 1 = any ('{1}') not null",
         "a int default case when true then null else 1 end null, b bool default 1 = any ('{1}') not null", ["a", "b"]),
        ("a int constraint c not null constraint d check (a > 0) no inherit, constraint e check (a < 9)",
         "a int constraint c not null constraint d check(a > 0) no inherit, constraint e check(a < 9)", ["a"]),
        ("id int primary key, n int references public.t (a) on delete set null on update cascade, u text unique",
         "id int primary key, n int references public.t(a) on delete set null on update cascade, u text unique",
         ["id", "n", "u"]),
        ("a int, unique (a), foreign key (a) references t (b) on delete set default initially deferred",
         "a int, unique (a), foreign key(a) references t(b) on delete set default initially deferred", ["a"]),
        ("c text, exclude using btree (c with =), primary key (c)",
         "c text, exclude using btree(c with =), primary key(c)", ["c"]),
    ],
)  # fmt: skip
def test_columns_are_read_and_written_in_one_form(text: str, normal: str, names: list[str]) -> None:
    found = parse_attributes(text)
    assert (found["text"].replace("check(", "check ("), found["names"]) == (normal.replace("check(", "check ("), names)
    assert parse_attributes(found["text"]) == found


@pytest.mark.parametrize(
    ("text", "position", "sqlstate"),
    [
        ("a int); create table public.p (b int", 6, "42601"),
        ("a int; drop table x", 6, "42601"),
        ("a int) tablespace x --", 6, "42601"),
        ("a int) inherits (public.t", 6, "42601"),
        ("a int as (select 1)", 7, "42601"),
        ("a int default $1", 15, "42601"),
        ("a int default :x", 15, "42601"),
        ("a int default (1", 15, "42601"),
        ("a int,, b int", 7, "42601"),
        ("a int,", 7, "42601"),
        (", a int", 1, "42601"),
        ("a", 2, "42601"),
        ("a not null", 3, "42601"),
        ("select int", 1, "42601"),
        ("a int default", 14, "42601"),
        ("a int default 1 default", 24, "42601"),
        ("a int where true", 7, "42601"),
        ("a int check a > 0", 13, "42601"),
        ("a int[now()]", 7, "42601"),
        ("a numeric(now())", 14, "42601"),
        ("a t.b%type", 6, "42601"),
        ("a int default 'x", 15, "42601"),
        ("a int /* ", 7, "42601"),
        ("like public.t", 1, "0A000"),
        ("a int generated always as identity", 7, "0A000"),
        ("a int generated always as (1) stored", 7, "0A000"),
        ("a int, _producer text", 8, "42701"),
        ('"_producer_seq" bigint', 1, "42701"),
        ("a int default " + "(" * 101 + "1" + ")" * 101, 115, "54000"),
    ],
)  # fmt: skip
def test_anything_else_is_refused_with_its_place_and_a_remedy(text: str, position: int, sqlstate: str) -> None:
    with pytest.raises(SqlTextError) as caught:
        parse_attributes(text)
    assert (caught.value.position, caught.value.sqlstate) == (position, sqlstate)
    assert caught.value.hint.endswith(".")
