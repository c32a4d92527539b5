"""Which filters are safe to run with the rights of pgps: those over the event alone."""

import pytest

from tests.unit.filters import ATTRIBUTES, parse, shape


@pytest.mark.parametrize(
    "source",
    [
        "symbol = 'A' and (price > 5 or not ok) and qty is not null",
        'security.price * 2 <= qty % 3 and security."Odd" + -1 <> 0 and security.and is distinct from 3',
        "symbol like 'a%' and note not ilike '%b' and symbol ~~ 'c' and symbol || 'x' <> note",
        "symbol in ('a', 'b') and qty not in (1, -2, null) and price between 1 and 2 and qty not between 3 and 4",
        "case when ok then 1 else 2 end = 1 and case qty when 1 then true end and coalesce(ok, true, 1 = 2)",
        "nullif(qty, 0) = greatest(1, least(2, qty)) and lower(symbol) = left(note, 2)",
        "position('a' in lower(symbol)) > 1 and substring(note, 2, 3) = btrim(note)",
        "price::numeric(10,2) = cast(qty as double precision) and at::timestamp with time zone > date '2020-01-01'",
        "at > timestamp(3) without time zone '2020-01-01' and date = date '2020-01-01' and date > '2020-01-01'",
        "ok is true and ok is not unknown and qty isnull or note notnull",
        "ok",
    ],
)
def test_filters_over_the_event_alone_are_safe(source: str) -> None:
    result = parse(source)
    assert result["safe"]
    assert all(name in ATTRIBUTES for name in result["attributes"])


@pytest.mark.parametrize(
    "source",
    [
        "exists (select 1)",
        "(select true)",
        "pg_sleep(10) is null",
        "lower(pg_read_file('x')) = 'a'",
        "public.lower(symbol) = 'a'",
        "\"lower\"(symbol) = 'a'",
        "symbol ~ '^(a+)+$'",
        "symbol similar to 'a'",
        "symbol operator(public.=) 'a'",
        "tags[1] = 1",
        "array[1] = null",
        "(symbol, price) = ('a', 1)",
        "row(1) = row(1)",
        "current_user = 'a'",
        "user = 'a'",
        "other = 1",
        "other.price = 1",
        "security = null",
        "ctid is null",
        "price.lower = 1",
        "symbol like 'a' escape 'b'",
        "symbol collate \"C\" = 'a'",
        "price::regclass = 1",
        "price::int[] = null",
        "price::mytype = null",
        "repeat(symbol, 100) = 'a'",
        "qty ^ 2 = 1",
        "qty = any ('{1,2}')",
        "interval '1' day > at",
        "mytype '1' = price",
        "symbol is document",
        "qty in (select 1)",
        "cast(qty as text) = overlay(note placing 'a' from 1)",
        "b'1' = b'1'",
        "substring(note from 2) = 'a'",
        "qty 1",
        "position(note, 'a') = 1",
    ],
)
def test_whatever_else_is_not_safe(source: str) -> None:
    assert not parse(source)["safe"]


def test_key_words_are_attributes_only_behind_the_type() -> None:
    assert shape("security.and = 1 and security.AND > 2") == '"and" = $1 and "and" > $2'


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("length(note) != 3", {"functions": ["length"], "operators": ["<>"], "attributes": ["note"]}),
        ("note like 'a' or note not in ('b')", {"operators": ["<>", "~~"]}),
        ("price::int = 4", {"types": ["int4"]}),
        ("qty::double precision = 4.0::decimal", {"types": ["float8", "numeric"]}),
        ("now() > at and x.f(price::mytype) ~ 'a'", {"functions": ["f", "now"], "operators": [">", "~"]}),
        ("x.f(price::my.type) and 'a' = other '2'", {"types": ["other", "type"], "attributes": ["price"]}),
        ("exists (select 1 from t where t.price = security.qty)", {"attributes": ["qty"], "functions": []}),
        ("trim(both 'x' from note) = ''", {"functions": ["btrim"], "safe": False}),
        ("cast(at as varchar(3)) = ''", {"functions": [], "types": ["varchar"]}),
    ],
)
def test_names_are_those_of_the_catalogue(source: str, names: dict[str, list[str]]) -> None:
    result = parse(source)
    assert {key: result[key] for key in names} == names
