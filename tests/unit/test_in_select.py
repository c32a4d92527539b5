"""IN (SELECT …): what becomes EXISTS with parameters, and what does not."""

import pytest

from tests.unit.filters import parse


def test_in_select_becomes_exists_with_parameters() -> None:
    result = parse("symbol IN (SELECT symbol FROM portfolios WHERE portfolio_id = 7)")
    assert result["in_select"]
    assert result["shape"] == (
        'exists (select 1 from portfolios where portfolio_id = $1 and (symbol) = "security"."symbol")'
    )
    assert [parameter["value"] for parameter in result["parameters"]] == ["7"]
    assert not result["safe"]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("symbol in (select p.symbol as s from portfolios p)", "from portfolios p where (p.symbol) ="),
        ("symbol in (select distinct symbol from p where a = 1 or b = 2)", "where (a = $1 or b = $2) and (symbol) ="),
        ("security.symbol in (select symbol from p, q)", "from p, q where (symbol) ="),
        ("symbol in (select s from p where k in (select 3))", "where k in (select 3) and (s) ="),
        ("symbol in (select s from p where a is distinct from 4)", "where a is distinct from $1 and (s) ="),
    ],
)
def test_simple_sub_selects_are_rewritten(source: str, expected: str) -> None:
    assert parse(source)["in_select"]
    assert expected in parse(source)["shape"]


@pytest.mark.parametrize(
    "source",
    [
        "symbol not in (select s from p where k = 7)",
        "not symbol in (select s from p where k = 7)",
        "symbol in (select s from p where k = 7) or ok",
        "symbol in (select s from p where k = 7) is not false",
        "symbol || 'x' in (select s from p where k = 7)",
        "symbol in (select s from p limit 7)",
        "symbol in (select s from p group by s having count(*) > 7)",
        "symbol in (select s from p union select 'x')",
        "symbol in (select s from p order by s fetch first 7 rows only)",
        "symbol in (select s from p where k = 7 for update)",
        "symbol in (select max(s) from p where k = 7)",
        "symbol in (select lower(s) from p where k = 7)",
        "symbol in (select distinct on (k) s from p where k = 7)",
        "symbol in (select s from security where k = 7)",
        "symbol in (select s from p as Security where k = 7)",
        "symbol in (select s from (select 1) security (s) where k = 7)",
        "symbol in (select * from p where k = 7)",
        "symbol in (with q as (select 7) select s from q)",
        "symbol in (values ('a'))",
        "symbol in (select 'a')",
        "symbol in ((select s from p where k = 7))",
        "other in (select s from p where k = 7)",
    ],
)
def test_other_sub_selects_stay_with_their_constants(source: str) -> None:
    result = parse(source)
    assert not result["in_select"]
    assert "7" not in [parameter["value"] for parameter in result["parameters"]]
