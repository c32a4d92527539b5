"""Fetch peers by name, without privileges: nothing is installed into the system, no service is started.

Debian packages are downloaded by apt and unpacked below the cache; packages from PyPI go into a virtual
environment there, those from npm into a directory there. Missing is raised for a peer that cannot be fetched.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from pgps import config

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Missing", "cache", "debian", "debian_version", "npm", "python"]

_TIMEOUT = 300.0


class Missing(Exception):
    """A peer cannot be fetched here; the text says why."""


def cache() -> Path:
    """Return where peers are kept: beside the private clusters, which an unprivileged user reaches."""
    place = config.default_home() / "field"
    place.mkdir(parents=True, exist_ok=True)
    return place


def debian(*packages: str) -> Path:
    """Unpack Debian packages, and what they need that the system lacks; return the root they are below.

    Packages that the system has are not unpacked again: look below `/` for what is not below the root.
    """
    root = cache() / f"debian-{packages[0]}"
    if (root / ".complete").exists():
        return root
    for program in ("apt-get", "dpkg"):
        if shutil.which(program) is None:
            raise Missing(f"{packages[0]} comes from Debian, and there is no {program}")
    simulated = _run(["apt-get", "--simulate", "--no-install-recommends", "install", *packages], packages[0])
    needed = [line.split()[1] for line in simulated.splitlines() if line.startswith("Inst ")]
    archives = root / "archives"
    shutil.rmtree(root, ignore_errors=True)
    archives.mkdir(parents=True)
    if needed:
        _run(["apt-get", "download", *needed], packages[0], directory=archives)
    for archive in sorted(archives.glob("*.deb")):
        _run(["dpkg", "--extract", str(archive), str(root)], packages[0])
    shutil.rmtree(archives)
    (root / ".complete").touch()
    return root


def debian_version(package: str) -> str:
    """Return the version of a package that apt would install, or has."""
    for line in _run(["apt-cache", "policy", package], package).splitlines():
        if "Candidate:" in line:
            return line.split(":", 1)[1].strip()
    raise Missing(f"{package} is unknown to apt")


def python(*packages: str) -> Path:
    """Install packages from PyPI into an environment of their own; return its interpreter."""
    place = cache() / f"python-{packages[0].partition('==')[0]}"
    interpreter = place / "bin" / "python"
    if not (place / ".complete").exists():
        shutil.rmtree(place, ignore_errors=True)
        _run([sys.executable, "-m", "venv", str(place)], packages[0])
        _run([str(interpreter), "-m", "pip", "install", "--quiet", *packages], packages[0])
        (place / ".complete").touch()
    return interpreter


def npm(*packages: str) -> Path:
    """Install packages from npm into a directory of their own; return its node_modules."""
    for program in ("node", "npm"):
        if shutil.which(program) is None:
            raise Missing(f"{packages[0]} comes from npm, and there is no {program}")
    place = cache() / f"npm-{packages[0].replace('/', '-')}"
    if not (place / ".complete").exists():
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        (place / "package.json").write_text('{"private": true}\n')
        _run(["npm", "install", "--silent", "--no-audit", "--no-fund", *packages], packages[0], directory=place)
        (place / ".complete").touch()
    return place / "node_modules"


def _run(command: Sequence[str], what: str, *, directory: Path | None = None) -> str:
    try:
        done = subprocess.run(
            command, cwd=directory, env={**os.environ, "LC_ALL": "C"}, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, check=False, timeout=_TIMEOUT,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Missing(f"{what} could not be fetched: {error}") from error
    if done.returncode != 0:
        said = (done.stderr.strip() or done.stdout.strip()).splitlines()
        raise Missing(f"{what} could not be fetched: {said[-1] if said else f'exit status {done.returncode}'}")
    return done.stdout
