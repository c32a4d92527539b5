"""The modules of the broker's detector: the very files that the server's functions are made of."""

from __future__ import annotations

import ast
import importlib
import sys
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import spec_from_file_location
from typing import TYPE_CHECKING, Any

from pgps._resources import sql_dir

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import CodeType, ModuleType

__all__ = ["module"]

# A package of ours, since `composite` or `lexer` may be the name of somebody else's module.
_PACKAGE = "pgps_spark.detecting.server"


class _Loader(SourceFileLoader):
    """Load a file whose imports of its neighbours name them without a package."""

    def get_code(self, fullname: str) -> CodeType:
        """Return the code; what the interpreter may have cached of the file has other imports."""
        path = self.get_filename(fullname)
        tree = ast.parse(self.get_data(path), path)
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module and _is_ours(node.module):
                node.module = f"{_PACKAGE}.{node.module}"
        return compile(tree, path, "exec", dont_inherit=True)


class _Finder(MetaPathFinder):
    """Find the modules of the package among the files beside the SQL."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return where a module is; None for all modules but these."""
        del path, target
        if fullname == _PACKAGE:
            spec = ModuleSpec(fullname, None, is_package=True)
            spec.submodule_search_locations = [str(sql_dir() / "python")]
            return spec
        if not fullname.startswith(_PACKAGE + "."):
            return None
        place = sql_dir().joinpath("python", *fullname.removeprefix(_PACKAGE + ".").split("."))
        file = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
        if not file.is_file():
            return None
        inside = [str(place)] if place.is_dir() else None
        loader = _Loader(fullname, str(file))
        return spec_from_file_location(fullname, file, loader=loader, submodule_search_locations=inside)


def _is_ours(name: str) -> bool:
    return sql_dir().joinpath("python", *name.split(".")).with_suffix(".py").is_file()


def module(name: str) -> Any:
    """Return a module of the detector, as `composite.detector`."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
    return importlib.import_module(f"{_PACKAGE}.{name}")
