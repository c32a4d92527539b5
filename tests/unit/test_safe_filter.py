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
        "btrim(symbol, 'xy') like 'a%' and strpos(note, 'b') > 0 and note like null and rtrim(note) = 'a'",
        " or ".join(f"lower(symbol) like '{n}%' and qty = {n}" for n in range(50)),
        "substring(note, -1) = 'a' and substr(note, qty, 2) = 'b' and substring(note, 1, qty) = 'c'",
        "symbol || '0' = '10' and note::numeric > 1 and '10'::numeric < price and cast(security.note as numeric) = 5",
        "round((price * 1.1)::numeric, 2) > 1 and cast(qty / 3 as numeric) < 5 and lower(note)::numeric = 1",
        "(symbol || '1')::int = 11 and left(note, 2)::float8 > 1.5",
        "price < 1e308 and price > -1.5e-300 and price <> numeric '1e+300' and note = 'e100000' and note = '1e5.'",
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
        "substring(note, '^(.+)(.+).*\\2\\1x$') is null",
        "substring(note, symbol) is null",
        "substring(note, 'a', '#') is null",
        "substring(note, 2 || '') is null",
        "substring(note, (symbol)) is null",
        "substring(note, 2::text) is null",
        "1e131071 % (1e65000 + price) >= 0",
        "price > 1e-16000",
        "btrim(symbol, note) = 'a'",
        "strpos(note, symbol) = 1",
        "position(symbol in note) = 1",
        "position('a' || symbol in note) = 1",
        "note like symbol",
        "note like 'a' || symbol",
        "note not ilike '%' || symbol || '%'",
        "note ~~ lower(symbol)",
        f"strpos(note, '{'a' * 1001}') = 1",
        f"note like '{'a' * 1001}%'",
        "lower(" * 51 + "note" + ")" * 51 + " = 'a'",
        "||".join(["note"] * 52) + " = 'a'",
        "*".join(["qty"] * 52) + " = 1",
        "note" + "::text" * 51 + " = 'a'",
        "price > ' 1E131071'::numeric",
        "price > numeric '+1.5e13_1071'",
        "cast('.5e401' as numeric) > price",
        f"price > {'9' * 401}",
        f"price > '0x{'f' * 400}'::numeric",
        "('1e131' || '071')::numeric % price > 1",
        "cast(qty::text || 'e131071' as numeric) % price > 1",
        "left('1e131071x', 8)::numeric > price",
        "(substr('x1e131071', 2))::text::decimal > price",
        "coalesce(null, rtrim('1e131071x', 'x'))::numeric(10,2) > price",
        "'1e131071x'::varchar(8)::numeric > price",
        "cast(character(8) '1e131071x' as numeric) > price",
        "case when ok then right('x1e131071', 8) end::numeric > price",
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
