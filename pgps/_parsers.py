"""The pure modules of sql/python: which there are, which import which, and how they are loaded outside the server.

The server has them as rows of a table (`tools/embed_python.py`); where it has no PL/Python, `pgps.parsing` runs the
same files.
"""

from __future__ import annotations

import ast
import builtins
import hashlib
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from pgps._resources import sql_dir

__all__ = ["PARSERS", "digest_of", "load", "load_order", "modules_of", "parser_digest", "source_of"]

PARSERS = {
    "parse_filter": "filter_text",
    "parse_statement": "statement_text",
    "parse_attributes": "attribute_list",
    "parse_callback": "callback_text",
}
"""The functions that look at nothing but their arguments, and the module of each."""


def modules_of(module: str) -> list[str]:
    """Return the modules that a function of this one needs, each behind those that it imports."""
    return list(dict.fromkeys(load_order("calling") + load_order(module)))


def load_order(module: str) -> list[str]:
    """Return the modules that a module imports, directly or not, each behind those it needs, itself last."""
    order: list[str] = []

    def visit(name: str) -> None:
        if name not in order:
            for node in ast.parse(source_of(name)).body:
                if isinstance(node, ast.ImportFrom) and _is_local(node):
                    visit(str(node.module))
            order.append(name)

    visit(module)
    return order


def source_of(module: str) -> str:
    """Return the source text of a module."""
    return _path_of(module).read_text(encoding="utf-8")


def digest_of(modules: Iterable[str]) -> str:
    """Return what tells these modules from those of another release."""
    text = "".join(f"{name}\n{source_of(name)}" for name in modules)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@cache
def parser_digest() -> str:
    """Return the digest of all that the parsers are made of."""
    return digest_of(sorted({name for module in PARSERS.values() for name in modules_of(module)}))


def load(module: str, loaded: dict[str, ModuleType]) -> ModuleType:
    """Return a module, as the server would load it; those in `loaded` are there already, new ones are added.

    They get no place in sys.modules: their names, such as `lexer`, are not theirs alone.
    """

    def import_module(name: str, *rest: Any) -> Any:
        return loaded[name] if name in loaded else __import__(name, *rest)

    for name in modules_of(module):
        if name not in loaded:
            made = ModuleType(name)
            made.__dict__["__builtins__"] = {**vars(builtins), "__import__": import_module}
            exec(compile(source_of(name), str(_path_of(name)), "exec", dont_inherit=True), made.__dict__)  # noqa: S102
            loaded[name] = made
    return loaded[module]


def _path_of(module: str) -> Path:
    """Return the path of a module; the name of a module in a package has dots."""
    return (sql_dir() / "python").joinpath(*module.split(".")).with_suffix(".py")


def _is_local(node: ast.ImportFrom) -> bool:
    """Tell whether an import is of another module in sql/python."""
    return node.module is not None and _path_of(node.module).exists()
