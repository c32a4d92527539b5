"""The scripts themselves: one head, one script for each revision, and all of them listed."""

from __future__ import annotations

from pathlib import Path

from alembic.config import Config
from alembic.script import ScriptDirectory

from pgps import _resources, _scripts

ROOT = _resources.migrations_dir().parent


def test_there_is_one_head_and_each_revision_is_one_script() -> None:
    configuration = Config()
    configuration.set_main_option("script_location", str(_resources.migrations_dir()))
    scripts = ScriptDirectory.from_config(configuration)
    assert scripts.get_heads() == [_scripts.head()]
    stems = [Path(revision.path).stem for revision in scripts.walk_revisions()]
    assert [f"schema/{stem}.sql" for stem in reversed(stems)] == _scripts.schema_scripts()


def test_install_sql_lists_every_script() -> None:
    root = _resources.sql_dir()
    there = {
        str(path.relative_to(root))
        for folder in ("schema", "generated", "code")
        for path in (root / folder).rglob("*.sql")
    }
    listed = _scripts.schema_scripts() + _scripts.code_scripts()
    stand_ins = set(_scripts.code_scripts("client")) - set(listed)
    assert stand_ins == {name for name in there if name.endswith(".client.sql")}
    assert {*listed, *stand_ins} == there
    lines = [line for line in (root / "install.sql").read_text().splitlines() if line and not line.startswith("--")]
    assert [line for line in lines if not line.startswith("\\ir ")] == []
