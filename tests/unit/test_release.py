"""A release's tag is signed, and says what has changed and what was built."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

import pgps

ROOT = Path(__file__).resolve().parents[2]
CHANGELOG = """\
# Changelog

## Unreleased

## 0.2.0 - 2027-01-01

### Added
- Something new.

## 0.1.0 - 2026-11-22
- Something old.
"""


def test_the_package_and_the_code_in_the_database_say_the_same_version() -> None:
    assert f"select '{pgps.__version__}'" in (ROOT / "sql/code/core/entry.sql").read_text()


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout with all that a release needs, and somebody whose key signs."""
    home, place = tmp_path / "home", tmp_path / "checkout"
    for directory in (home, place / ".ci", place / "pgps", place / "sql/code/core", place / "dist"):
        directory.mkdir(parents=True)
    for name in [name for name in os.environ if name.startswith("GIT_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(home / "config"))
    monkeypatch.setenv("GIT_CONFIG_SYSTEM", os.devnull)
    key = home / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
    (home / "signers").write_text(f"release@pgps.example {(home / 'key.pub').read_text()}")
    settings = {
        "user.name": "Release", "user.email": "release@pgps.example", "gpg.format": "ssh",
        "user.signingKey": str(key), "gpg.ssh.allowedSignersFile": str(home / "signers"),
    }  # fmt: skip
    for name, value in settings.items():
        subprocess.run(["git", "config", "--global", name, value], check=True)
    shutil.copy(ROOT / ".ci" / "release", place / ".ci" / "release")
    (place / ".gitignore").write_text("dist/\n")
    (place / "CHANGELOG.md").write_text(CHANGELOG)
    (place / "pgps/__init__.py").write_text('__version__ = "0.2.0"\n')
    (place / "sql/code/core/entry.sql").write_text("as $$ select '0.2.0' $$;\n")
    for name in ("pgps-0.2.0-py3-none-any.whl", "pgps-0.2.0.tar.gz"):
        (place / "dist" / name).write_text(name)
    subprocess.run(["git", "init", "--quiet"], cwd=place, check=True)
    _commit(place)
    return place


def _commit(place: Path) -> None:
    subprocess.run(["git", "add", "--all"], cwd=place, check=True)
    subprocess.run(["git", "commit", "--quiet", "--message", "change"], cwd=place, check=True)


def _release(place: Path, version: str = "0.2.0") -> subprocess.CompletedProcess[str]:
    return subprocess.run([".ci/release", version], cwd=place, capture_output=True, text=True, check=False)


def _git(place: Path, *arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=place, capture_output=True, text=True, check=True)
    return done.stdout + done.stderr


def test_the_tag_of_a_release_has_its_changes_and_digests_under_a_signature(checkout: Path) -> None:
    done = _release(checkout)
    assert done.returncode == 0, done.stderr
    assert "Good" in _git(checkout, "tag", "--verify", "v0.2.0")
    message = _git(checkout, "tag", "--list", "--format=%(contents)", "v0.2.0")
    assert "## 0.2.0 - 2027-01-01\n\n### Added\n- Something new." in message
    assert "Something old" not in message
    digest = subprocess.run(
        ["sha256sum", "pgps-0.2.0.tar.gz"], cwd=checkout / "dist", capture_output=True, text=True, check=True
    ).stdout
    assert digest in message


@pytest.mark.parametrize(
    ("path", "text", "why"),
    [
        ("pgps/__init__.py", '__version__ = "0.2.0.dev0"\n', "another version"),
        ("sql/code/core/entry.sql", "as $$ select '0.1.0' $$;\n", "pgps.version()"),
        ("CHANGELOG.md", "# Changelog\n\n## Unreleased\n", "no part '## 0.2.0"),
    ],
    ids=["package", "database", "changelog"],
)
def test_a_release_that_does_not_fit_together_is_refused(checkout: Path, path: str, text: str, why: str) -> None:
    (checkout / path).write_text(text)
    assert "not committed" in _release(checkout).stderr
    _commit(checkout)
    assert why in _release(checkout).stderr
    assert _git(checkout, "tag") == ""


def test_a_release_without_its_packages_is_refused(checkout: Path) -> None:
    (checkout / "dist" / "pgps-0.2.0.tar.gz").unlink()
    assert "make package" in _release(checkout).stderr
