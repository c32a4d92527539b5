"""Released versions of pgps, unpacked from tests/migration/releases: installed and run as they were."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from dataclasses import dataclass
from pathlib import Path

_ARCHIVES = Path(__file__).with_name("releases")

_INSTALL = """
import sys
from pathlib import Path
from pgps import install
assert Path(install.__file__).is_relative_to(Path.cwd()), install.__file__
install.install(sys.argv[1])
"""


@dataclass(frozen=True)
class Release:
    """A release that was unpacked to `home`."""

    version: str
    home: Path

    @property
    def environment(self) -> dict[str, str]:
        """The environment in which Python finds this release's packages, in the directory `home`, and no others."""
        return {**os.environ, "PYTHONPATH": f"{self.home}{os.pathsep}{self.home / 'worker'}"}

    def install(self, dsn: str) -> None:
        """Install it into an empty database."""
        subprocess.run([sys.executable, "-c", _INSTALL, dsn], cwd=self.home, env=self.environment, check=True)


def versions() -> list[str]:
    """Return what was released, oldest first."""
    found = [archive.name.removesuffix(".tar.xz") for archive in _ARCHIVES.glob("*.tar.xz")]
    return sorted(found, key=lambda version: [int(part) for part in version.split(".")])


def unpack(version: str, directory: Path) -> Release:
    """Unpack a release into a directory."""
    home = directory / version
    with tarfile.open(_ARCHIVES / f"{version}.tar.xz") as archive:
        archive.extractall(home, filter="data")
    return Release(version, home.resolve())


def schema_of(version: str) -> dict[str, str]:
    """Return the revisions of a release, by the paths of their files."""
    with tarfile.open(_ARCHIVES / f"{version}.tar.xz") as archive:
        return {
            member.name: file.read().decode()
            for member in archive
            if member.name.startswith("sql/schema/") and (file := archive.extractfile(member))
        }
