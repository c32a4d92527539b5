"""Finding PostgreSQL server binaries that have PL/Python 3."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from pgps import config
from pgps.errors import BinariesMissing

__all__ = ["MINIMUM_MAJOR", "Binaries", "find_binaries"]

MINIMUM_MAJOR = 15
_DEBIAN_ROOT = Path("/usr/lib/postgresql")


@dataclass(frozen=True, slots=True)
class Binaries:
    """A directory with `initdb`, `pg_ctl` and `postgres` of one major version."""

    directory: Path
    major: int

    def program(self, name: str) -> str:
        """Return the full path of one of the programs."""
        return str(self.directory / name)


def find_binaries(*, server_bin: Path | None = None, major: int | None = None) -> Binaries:
    """Return the newest usable server binaries.

    `server_bin` (else PGPS_PG_BIN) names a directory and ends the search
    there; otherwise `pg_config --bindir` and Debian's directories are tried.
    `major` restricts the answer to the version a data directory was made by.
    Raises BinariesMissing, with the package to install.
    """
    chosen = server_bin or config.load().server_bin
    candidates = [chosen] if chosen else _likely_directories()
    complete = [found for found in map(_inspect, candidates) if found]
    wanted = [found for found in complete if major in (None, found.major) and found.major >= MINIMUM_MAJOR]
    usable = [found for found in wanted if _has_plpython(found)]
    if usable:
        return max(usable, key=lambda found: found.major)
    raise _missing(chosen, major, complete, wanted)


def _likely_directories() -> list[Path]:
    directories = list(_DEBIAN_ROOT.glob("*/bin"))
    answer = _ask_pg_config("pg_config", "--bindir")
    if answer is not None and answer not in directories:
        directories.append(answer)
    return directories


def _ask_pg_config(program: str, option: str) -> Path | None:
    if shutil.which(program) is None:
        return None
    done = subprocess.run([program, option], capture_output=True, text=True, check=False)
    return Path(done.stdout.strip()) if done.returncode == 0 else None


def _inspect(directory: Path) -> Binaries | None:
    programs = [directory / name for name in ("initdb", "pg_ctl", "postgres")]
    if not all(program.exists() for program in programs):
        return None
    done = subprocess.run([str(programs[-1]), "--version"], capture_output=True, text=True, check=False)
    version = re.search(r"\) (\d+)", done.stdout)
    return Binaries(directory, int(version.group(1))) if version else None


def _has_plpython(binaries: Binaries) -> bool:
    """Say whether plpython3u can be created, from its control file."""
    sharedir = _ask_pg_config(binaries.program("pg_config"), "--sharedir")
    # Debian ships pg_config for every major only with the -dev package; the layout is fixed there.
    roots = [sharedir] if sharedir else []
    roots.append(Path("/usr/share/postgresql") / str(binaries.major))
    roots.append(binaries.directory.parent / "share")
    roots.append(binaries.directory.parent / "share" / "postgresql")
    return any((root / "extension" / "plpython3u.control").exists() for root in roots)


def _missing(
    chosen: Path | None, major: int | None, complete: list[Binaries], wanted: list[Binaries]
) -> BinariesMissing:
    if wanted:
        newest = max(found.major for found in wanted)
        return BinariesMissing(
            f"PostgreSQL {newest} has no PL/Python 3",
            hint=f"Install it: apt-get install postgresql-plpython3-{newest}",
        )
    if chosen is not None:
        return BinariesMissing(
            f'no PostgreSQL server binaries, version {major or MINIMUM_MAJOR} or newer, in "{chosen}"',
            hint="Set PGPS_PG_BIN to the directory that holds initdb and postgres, or unset it.",
        )
    found = ", ".join(str(one.major) for one in complete)
    package = f"postgresql-{major} postgresql-plpython3-{major}" if major else "postgresql postgresql-plpython3-15"
    return BinariesMissing(
        f"no PostgreSQL {major or f'{MINIMUM_MAJOR} or newer'} server binaries on this machine"
        + (f" (found: {found})" if found else ""),
        hint=f"Install them: apt-get install {package} (the number follows the Debian release), "
        "or set PGPS_PG_BIN to the directory that holds initdb and postgres.",
    )
