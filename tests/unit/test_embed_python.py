"""The PL/Python functions are made of the modules in sql/python."""

import ast
import importlib.util
import marshal
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from pgps import _parsers

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


class Database:
    """Stand in for plpy: it has the modules of this release, compiled unless `magic` is another Python's."""

    def __init__(self, magic: bytes = importlib.util.MAGIC_NUMBER) -> None:
        self.magic = magic
        self.asked: list[list[str]] = []

    def prepare(self, statement: str, types: list[str]) -> "Database":
        assert "pgps._python_modules" in statement
        return self

    def execute(self, arguments: list[Any]) -> list[dict[str, Any]]:
        names, digest, magic = arguments
        self.asked.append(names)
        if digest != embed.digest_of_modules():
            return []
        sources = {name: embed.source_of(name) for name in names}
        if magic != self.magic:
            return [{"name": name, "source": source, "code": None} for name, source in sources.items()]
        code = {name: marshal.dumps(compile(source, name, "exec")) for name, source in sources.items()}
        return [{"name": name, "source": None, "code": code[name]} for name in names]

    def error(self, message: str, **fields: str) -> None:
        raise RuntimeError(message, fields)


def call(name: str, *, db: Any = None, session: Any = None, **arguments: Any) -> str:
    """Run the body of a function as PL/Python would, in a session that has called others."""
    source = "def body():\n" + "".join(f"\t{line}\n" for line in body_of(name).split("\n"))
    scope: dict[str, Any] = {"SD": {}, "GD": {} if session is None else session, "plpy": db or Database(), **arguments}
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
    monkeypatch.setattr(embed, "CLIENT_TARGET", tmp_path / "python.client.sql")
    assert embed.main() == 1
    embed.TARGET.write_text("-- old")
    assert embed.main() == 1
    monkeypatch.setattr(sys, "argv", ["embed_python.py"])
    assert embed.main() == 0
    assert embed.TARGET.read_text(encoding="utf-8") == embed.generate()
    assert embed.CLIENT_TARGET.read_text(encoding="utf-8") == embed.generate_client()


def test_the_first_line_says_that_it_is_generated() -> None:
    assert "enerated by tools/embed_python.py" in embed.generate().splitlines()[0]


@pytest.mark.parametrize("function", embed.FUNCTIONS, ids=lambda function: function.name)
def test_bodies_run_as_the_inside_of_a_function(function: Any) -> None:
    body = embed.write_body(function)
    assert body.isascii()
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
    order = _parsers.load_order("filter_text")
    assert order.index("lexer") < order.index("token_lists") < order.index("filter_text")
    assert len(order) == len(set(order))


@pytest.mark.parametrize("name", embed.all_modules())
def test_modules_are_those_of_the_oldest_python_and_plain_text(name: str) -> None:
    source = embed.source_of(name)
    assert source.isascii()
    ast.parse(source, feature_version=(3, 9))


def test_a_session_loads_each_module_once() -> None:
    db, session = Database(), {}  # type: ignore[var-annotated]
    call("parse_filter", db=db, session=session, filter="a = 1", type_name="t", attributes=["a"])
    call("parse_attributes", db=db, session=session, attributes="a text")
    call("parse_attributes", db=db, session=session, attributes="b text")
    first, second = db.asked
    assert "lexer" in first
    assert second == ["attribute_list"]


def test_a_server_with_another_python_compiles_the_source() -> None:
    db = Database(magic=b"old")
    assert call("parse_callback", db=db, callback="f") == call("parse_callback", callback="f")


def test_modules_of_another_release_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    body = body_of("parse_callback").replace(embed.digest_of_modules(), "0123456789abcdef")
    monkeypatch.setattr(embed, "write_body", lambda function: body)
    with pytest.raises(RuntimeError, match="pgps was upgraded after this transaction had begun") as raised:
        call("parse_callback", callback="f")
    assert raised.value.args[1]["sqlstate"] == "40001"


def test_the_dollar_quote_does_not_occur_in_the_body() -> None:
    assert embed.quoted("$python$ $python1$") == "$python2$\n$python$ $python1$$python2$"


def test_a_module_of_a_package_brings_what_it_imports() -> None:
    order = _parsers.load_order("composite.detector")
    assert order.index("lexer") < order.index("composite.parser") < order.index("composite.graph") < len(order) - 1
