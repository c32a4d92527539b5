"""Where settings come from: argument, then PGPS_*, then PG*, then the default.

| setting      | environment                                    | default                  |
|--------------|------------------------------------------------|--------------------------|
| dsn          | PGPS_DSN, else libpq's own PG* and service file | libpq's defaults         |
| home         | PGPS_HOME                                      | see `default_home()`     |
| server_bin   | PGPS_PG_BIN                                    | searched for             |
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import platformdirs

__all__ = ["Settings", "default_home", "load"]


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of one process.

    `dsn` is a libpq connection string or URI; the empty string leaves
    everything to libpq, which reads PG* variables and service files itself.
    `home` is where embedded clusters live. `server_bin` is a directory with
    `initdb` and `postgres`, None to search for one.
    """

    dsn: str
    home: Path
    server_bin: Path | None


def load(*, dsn: str | None = None, home: Path | None = None, server_bin: Path | None = None) -> Settings:
    """Return the settings in force; None means "not given here"."""
    env_bin = os.environ.get("PGPS_PG_BIN")
    return Settings(
        dsn=dsn if dsn is not None else os.environ.get("PGPS_DSN", ""),
        home=home or default_home(),
        server_bin=server_bin or (Path(env_bin) if env_bin else None),
    )


def default_home() -> Path:
    """Return PGPS_HOME, else /var/lib/pgps for root, else the user's XDG data directory.

    Root's own home is closed to the unprivileged user the server runs as.
    """
    env = os.environ.get("PGPS_HOME")
    if env:
        return Path(env).expanduser().absolute()
    if os.geteuid() == 0:
        return Path("/var/lib/pgps")
    return Path(platformdirs.user_data_dir("pgps"))
