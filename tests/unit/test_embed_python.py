"""The PL/Python functions are made of the modules in sql/python."""

import ast
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("embed_python", ROOT / "tools" / "embed_python.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


embed = load()


def body_of(name: str) -> str:
    return str(next(embed.write_body(function) for function in embed.FUNCTIONS if function.name == name))


def call(name: str, **arguments: Any) -> str:
    """Run the body of a function as PL/Python would."""
    source = "def body():\n" + "".join(f"\t{line}\n" for line in body_of(name).split("\n"))
    scope: dict[str, Any] = {"SD": {}, **arguments}
    exec(source, scope)
    results = {scope["body"](), scope["body"]()}  # the second time from SD
    assert len(results) == 1
    return str(results.pop())


def test_the_generated_file_is_up_to_date(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["embed_python.py", "--check"])
    assert embed.main() == 0


def test_check_fails_when_it_is_not(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "argv", ["embed_python.py", "--check"])
    monkeypatch.setattr(embed, "ROOT", tmp_path)
    monkeypatch.setattr(embed, "TARGET", tmp_path / "python.sql")
    assert embed.main() == 1
    embed.TARGET.write_text("-- old")
    assert embed.main() == 1
    monkeypatch.setattr(sys, "argv", ["embed_python.py"])
    assert embed.main() == 0
    assert embed.TARGET.read_text(encoding="utf-8") == embed.generate()


def test_the_first_line_says_that_it_is_generated() -> None:
    assert "enerated by tools/embed_python.py" in embed.generate().splitlines()[0]


@pytest.mark.parametrize("function", embed.FUNCTIONS, ids=lambda function: function.name)
def test_bodies_run_as_the_inside_of_a_function(function: Any) -> None:
    body = embed.write_body(function)
    assert body.isascii()
    assert embed.free_tag(body) not in body
    ast.parse("def body():\n" + "".join(f"\t{line}\n" for line in body.split("\n")), feature_version=(3, 9))


def test_an_embedded_filter_is_taken_apart() -> None:
    result = call("parse_filter", filter="a = 1", type_name="t", attributes=["a"])
    assert '"shape": "\\"t\\".\\"a\\" = $1"' in result


def test_errors_come_back_as_values() -> None:
    assert call("parse_statement", statement="advertise") == (
        '{"error": {"message": "syntax error at the end of the statement", "position": 10,'
        ' "hint": "Syntax: ADVERTISE t", "sqlstate": "42601"}}'
    )


def test_modules_come_behind_those_they_import() -> None:
    order = embed.load_order("filter_text")
    assert order.index("lexer") < order.index("token_lists") < order.index("filter_text")
    assert len(order) == len(set(order))


def test_local_imports_and_docstrings_are_left_out() -> None:
    source = embed.strip_module("in_select")
    assert source.startswith("\n# in_select\n\nfrom typing import")
    assert "from lexer" not in source
    assert "    token_lists" not in source


def test_two_modules_must_not_define_the_same_name() -> None:
    with pytest.raises(ValueError, match="twice in one function: x"):
        embed.refuse_clashes(["x = 1\n", "def x(): pass\n"], set())
    with pytest.raises(ValueError, match="filter"):
        embed.refuse_clashes(["filter: int = 1\n"], {"filter"})


def test_the_dollar_quote_does_not_occur_in_the_body() -> None:
    assert embed.free_tag("$python$ $python1$") == "$python2$"


def test_a_module_of_a_package_brings_what_it_imports() -> None:
    order = embed.load_order("composite.detector")
    assert order.index("lexer") < order.index("composite.parser") < order.index("composite.graph") < len(order) - 1
    function = embed.Function("define", "composite.detector", {"name": "text", "expression": "text"}, "")
    body = embed.write_body(function)
    ast.parse("def body():\n" + "".join(f"\t{line}\n" for line in body.split("\n")), feature_version=(3, 9))
    assert body.isascii()
    scope: dict[str, Any] = {}
    modules = "".join(embed.strip_module(name) for name in order)
    program = """
graph, = build([define("pair", "a ; b")])
changes, found = detect(State(graph, matcher=Matcher(graph, {})), [Event(1, 10, "a"), Event(2, 20, "b")])
"""
    exec(modules + program, scope)
    assert [time >> 100 for time in scope["found"][0].occurrence[1:3]] == [10, 20]
