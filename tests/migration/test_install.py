"""Installing, upgrading and removing pgps."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from pgps import _resources, _scripts, install
from pgps.errors import ConnectionLost, InstallError, NotPermitted
from tests.fix_db import Connect, wait_until
from tests.fix_server import Server

# Installations wait for each other, also for those in other databases of the server.
pytestmark = pytest.mark.timeout(600)

ROOT = _resources.migrations_dir().parent

# What a database consists of, apart from what every database has.
CATALOGUE = """
    select 'schema ' || nspname || coalesce(nspacl::text, '') from pg_namespace
    where nspname !~ '^pg_' and nspname <> 'information_schema'
    union all
    select 'extension ' || extname from pg_extension
    union all
    select 'event trigger ' || evtname from pg_event_trigger
    union all
    select 'setting ' || s.setconfig::text
    from pg_db_role_setting s join pg_database d on d.oid = s.setdatabase
    where d.datname = current_database()
    union all
    select 'default privileges ' || defaclacl::text from pg_default_acl
    union all
    select format('%s %s %s', c.relkind, c.oid::regclass, c.relacl)
    from pg_class c join pg_namespace n on n.oid = c.relnamespace
    where n.nspname ~ '^pgps' and c.relkind <> 't'
    union all
    select format('column %s.%s %s %s', a.attrelid::regclass, a.attname, a.atttypid::regtype, a.attnotnull)
    from pg_attribute a join pg_class c on c.oid = a.attrelid join pg_namespace n on n.oid = c.relnamespace
    where n.nspname ~ '^pgps' and c.relkind <> 't' and a.attnum > 0 and not a.attisdropped
    union all
    select format('view %s %s', c.oid::regclass, pg_get_viewdef(c.oid))
    from pg_class c join pg_namespace n on n.oid = c.relnamespace
    where n.nspname ~ '^pgps' and c.relkind = 'v'
    union all
    select format('function %s %s %s', p.oid::regprocedure, p.proacl, md5(pg_get_functiondef(p.oid)))
    from pg_proc p join pg_namespace n on n.oid = p.pronamespace
    where n.nspname ~ '^pgps' and p.prokind <> 'a'
"""


def catalogue(dsn: str) -> set[str]:
    with psycopg.connect(dsn) as connection:
        return {row[0] for row in connection.execute(CATALOGUE.encode())}


def psql(dsn: str, *arguments: str) -> None:
    environment = {"PATH": os.environ["PATH"]}
    done = subprocess.run(
        ["psql", "-X", "-q", "-v", "ON_ERROR_STOP=1", dsn, *arguments],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.fixture
def installed(server: Server) -> Iterator[str]:
    """A database in which pgps was installed, for what comes after an installation."""
    dbname = f"installed_{os.getpid()}"
    yield server.clone(dbname)
    server.drop(dbname)


@pytest.fixture
def release(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of sql/ that stands for another release."""
    copy = tmp_path / "sql"
    shutil.copytree(_resources.sql_dir(), copy)
    monkeypatch.setattr(_scripts, "sql_dir", lambda: copy)
    return copy


@dataclass(frozen=True)
class NextRevision:
    """The revision of a release that is to come: its number, its script, and how it comes."""

    number: str
    script: str
    come: Callable[[], None]


def add_code(release: Path, body: str) -> None:
    """Add a replaceable script to a release."""
    (release / "code" / "extra.sql").write_text(body)
    contents = release / "install.sql"
    line = "\\ir code/extra.sql\n"
    if line not in contents.read_text():
        contents.write_text(contents.read_text() + line)


def test_an_empty_database_has_it_afterwards(empty_database: str) -> None:
    before = install.status(empty_database)
    assert (before.installed, before.up_to_date) == (False, False)
    assert install.pending(empty_database) == _scripts.schema_scripts() + _scripts.code_scripts()
    after = install.install(empty_database)
    assert after == install.status(empty_database)
    assert after.up_to_date
    assert install.pending(empty_database) == []


def test_installing_again_changes_nothing(installed: str, connect: Connect) -> None:
    query = "select max(xmin::text::bigint) from pg_proc"
    before = connect(dsn=installed).execute(query).fetchone()
    assert install.install(installed).up_to_date
    assert connect(dsn=installed).execute(query).fetchone() == before


def test_code_that_differs_is_applied_again(installed: str, release: Path, connect: Connect) -> None:
    add_code(
        release,
        "create or replace function pgps.extra() returns text language sql as $$ select format('%s:%s', 1, 'x') $$;",
    )
    assert not install.status(installed).up_to_date
    assert install.pending(installed) == _scripts.code_scripts()
    assert install.upgrade(installed).up_to_date
    assert connect(dsn=installed).execute("select pgps.extra()").fetchone() == ("1:x",)


def test_a_grant_whose_line_is_gone_does_not_outlive_it(empty_database: str, release: Path, connect: Connect) -> None:
    function = "create or replace function pgps.extra() returns int language sql as 'select 1';\n"
    add_code(release, function + "grant execute on function pgps.extra to public;")
    install.install(empty_database)
    add_code(release, function)
    install.install(empty_database)
    query = "select proacl::text from pg_proc where oid = 'pgps.extra()'::regprocedure"
    row = connect(dsn=empty_database).execute(query).fetchone()
    assert row is not None
    assert "{=X/" not in row[0]
    assert ",=X/" not in row[0]


def test_a_script_that_fails_leaves_the_database_as_it_was(empty_database: str, release: Path) -> None:
    before = catalogue(empty_database)
    add_code(release, "select 1;\nselekt 2;\n")
    with pytest.raises(InstallError, match=r'sql/code/extra.sql line 2: syntax error at or near "selekt"') as raised:
        install.install(empty_database)
    assert raised.value.sqlstate == "42601"
    assert catalogue(empty_database) == before


def test_uninstalling_leaves_nothing(empty_database: str) -> None:
    before = catalogue(empty_database)
    install.install(empty_database)
    install.uninstall(empty_database)
    assert catalogue(empty_database) == before
    assert not install.status(empty_database).installed
    install.uninstall(empty_database)


def test_uninstalling_leaves_a_language_that_was_there(empty_database: str, connect: Connect) -> None:
    connect(dsn=empty_database).execute("create extension plpython3u")
    before = catalogue(empty_database)
    install.install(empty_database)
    install.uninstall(empty_database)
    assert catalogue(empty_database) == before


def test_uninstalling_leaves_the_roles_another_database_uses(
    dsn: str, installed: str, admin: psycopg.Connection
) -> None:
    install.uninstall(installed)
    query = "select count(*) from pg_roles where rolname in ('pgps_admin', 'pgps_worker')"
    assert admin.execute(query).fetchone() == (2,)


def test_uninstalling_does_not_drop_what_an_administrator_made_elsewhere(installed: str, connect: Connect) -> None:
    mine = connect(dsn=installed)
    mine.execute("create table public.precious as select 1 as a")
    mine.execute("alter table public.precious owner to pgps_admin")
    mine.execute("create function public.does() returns int language sql security definer as 'select 1'")
    mine.execute("alter function public.does owner to pgps_admin")
    install.uninstall(installed)
    assert mine.execute("select a from public.precious").fetchone() == (1,)
    owner = mine.execute("select proowner::regrole::text from pg_proc where proname = 'does'")
    assert owner.fetchone() == ("pgps_admin",), "it runs with no more rights than before"


@pytest.fixture
def second_empty_database(server: Server) -> Iterator[str]:
    dbname = f"empty_too_{os.getpid()}"
    with psycopg.connect(server.base, autocommit=True) as connection:
        connection.execute(f"create database {dbname} template template0".encode())
    yield server.dsn(dbname)
    server.drop(dbname)


def test_installers_at_once_in_two_databases_all_succeed(empty_database: str, second_empty_database: str) -> None:
    program = "import sys; from pgps.install import install; print(install(sys.argv[1]).up_to_date)"
    installers = [
        subprocess.Popen([sys.executable, "-c", program, dsn], stdout=subprocess.PIPE, text=True, cwd=ROOT)
        for dsn in [empty_database, second_empty_database] * 2
    ]
    assert [installer.communicate()[0] for installer in installers] == ["True\n"] * 4


def test_threads_that_install_at_once_all_succeed(empty_database: str) -> None:
    with ThreadPoolExecutor(3) as pool:
        outcomes = list(pool.map(install.install, [empty_database] * 3))
    assert outcomes == [install.status(empty_database)] * 3


def test_a_second_installer_waits_for_the_first(empty_database: str, connect: Connect) -> None:
    first = connect(dsn=empty_database, autocommit=False)
    first.execute("lock table pg_authid in share update exclusive mode")
    second = threading.Thread(target=install.install, args=[empty_database])
    second.start()
    watcher = connect(dsn=empty_database)
    waiting = "select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"
    wait_until(lambda: watcher.execute(waiting).fetchone() is not None, what="the second installer waits")
    first.rollback()
    second.join()
    assert install.status(empty_database).up_to_date


def test_plain_psql_makes_the_same_database(empty_database: str, server: Server, own_database: str) -> None:
    psql(empty_database, "-1", "-f", str(_resources.sql_dir() / "install.sql"))
    by_alembic = {line for line in catalogue(own_database) if "alembic_version" not in line}
    assert catalogue(empty_database) == by_alembic


def test_what_plain_psql_installed_is_taken_over(empty_database: str) -> None:
    psql(empty_database, "-1", "-f", str(_resources.sql_dir() / "install.sql"))
    assert install.status(empty_database).revision == _scripts.head()
    assert install.upgrade(empty_database).up_to_date


def test_plain_psql_uninstalls(empty_database: str) -> None:
    before = catalogue(empty_database)
    install.install(empty_database)
    psql(empty_database, "-1", "-f", str(_resources.sql_dir() / "uninstall.sql"))
    assert catalogue(empty_database) == before


@pytest.fixture
def next_revision(release: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> NextRevision:
    """A release with one more revision, which makes table pgps_internal.more, once it has come."""
    newest = _scripts.schema_scripts()[-1]
    revision = f"{int(_scripts.head()) + 1:04}"
    script = f"schema/{revision}_more.sql"
    migrations = tmp_path / "migrations"
    shutil.copytree(_resources.migrations_dir(), migrations)
    baseline = (migrations / "versions" / "0001_baseline.py").read_text()
    (migrations / "versions" / f"{revision}_more.py").write_text(
        baseline.replace("0001_baseline", f"{revision}_more")
        .replace('revision = "0001"', f'revision = "{revision}"')
        .replace("down_revision = None", f'down_revision = "{_scripts.head()}"')
    )

    def come() -> None:
        monkeypatch.setattr(_resources, "migrations_dir", lambda: migrations)
        (release / script).write_text("create table pgps_internal.more (a int);\n")
        contents = release / "install.sql"
        contents.write_text(contents.read_text().replace(f"\\ir {newest}\n", f"\\ir {newest}\n\\ir {script}\n"))

    return NextRevision(revision, script, come)


def test_an_older_revision_is_brought_to_head(installed: str, next_revision: NextRevision, connect: Connect) -> None:
    next_revision.come()
    assert install.pending(installed) == [next_revision.script, *_scripts.code_scripts()]
    after = install.upgrade(installed)
    assert (after.revision, after.up_to_date) == (next_revision.number, True)
    connect(dsn=installed).execute("select from pgps_internal.more")


def test_an_upgrade_waits_for_nobody_in_another_database_of_the_server(
    installed: str, next_revision: NextRevision, connect: Connect
) -> None:
    next_revision.come()
    # What every session reads that connects, and what people look at.
    elsewhere = connect(autocommit=False)
    for catalog in ("pg_roles", "pg_database", "pg_db_role_setting", "pg_stat_activity"):
        elsewhere.execute(f"select count(*) from pg_catalog.{catalog}".encode())
    assert install.upgrade(installed).up_to_date
    elsewhere.rollback()


def test_generated_code_of_old_event_types_is_made_again(installed: str, release: Path, connect: Connect) -> None:
    mine = connect(dsn=installed)
    mine.execute("select pgps.create_event_type('tick', 'n integer'), pgps.advertise('tick')")
    mine.execute("select pgps.create_event_type('now', 'n integer', visibility => 'immediate')")
    mine.execute("select pgps.subscribe('even', 'tick', filter => 'n % 2 = 0')")
    mine.execute("insert into pgps_event.tick (n) values (1), (2)")
    mine.execute("create view public.seen as select n, state from pgps_queue.tick_in")
    row = mine.execute("select type_id from pgps_internal.event_type where name = 'tick'").fetchone()
    assert row is not None
    mine.execute(
        f"""
        create or replace function pgps_internal.part_ids_{row[0]}(pgps_xids xid8[], pgps_ranges int8multirange)
        returns pgps_internal.part_ids language plpgsql as $$ begin raise 'code of an older release'; end $$
        """.encode()
    )
    mine.execute(
        "update pgps_internal.generated set digest = 'older' where name = %s", [f"pgps_internal.part_ids_{row[0]}"]
    )
    mine.execute("select pgps.dispatch()")
    mine.execute("select pgps.dispatch()")
    failed = mine.execute("select error from pgps_internal.broken_type").fetchall()
    assert ["code of an older release" in error for (error,) in failed] == [True], "the type is set aside"
    add_code(release, "select 1;\n")
    assert install.upgrade(installed).up_to_date
    mine.execute("select pgps.resume_event_type('tick')")
    mine.execute("insert into pgps_event.tick (n) values (4)")
    for _ in range(2):
        mine.execute("select pgps.dispatch()")
    received = mine.execute("select (payload ->> 'n')::int from pgps.take('even')").fetchall()
    assert sorted(received) == [(2,), (4,)]
    mine.execute("insert into pgps_event.tick (n) values (6)")
    assert mine.execute("select n, state from public.seen").fetchall() == [(6, "waiting")]


def test_a_newer_release_in_the_database_is_left_alone(installed: str, connect: Connect) -> None:
    connect(dsn=installed).execute("update pgps_internal.alembic_version set version_num = '9999'")
    with pytest.raises(InstallError, match="revision 9999, this release only"):
        install.upgrade(installed)


def test_upgrading_what_is_not_installed_says_what_to_type(empty_database: str) -> None:
    with pytest.raises(InstallError, match="is not installed in database") as raised:
        install.upgrade(empty_database)
    assert "pgps install" in str(raised.value.hint)


def test_only_a_superuser_installs(empty_database: str, role: Callable[..., str], connect: Connect) -> None:
    nobody = role("nobody")
    with pytest.raises(InstallError, match=f'role "{nobody}" is not a superuser') as raised:
        install.install(make_conninfo(empty_database, user=nobody, password="test"))
    assert raised.value.sqlstate == "42501"


def test_only_who_may_read_it_sees_the_status(dsn: str, role: Callable[..., str]) -> None:
    with pytest.raises(NotPermitted) as raised:
        install.status(make_conninfo(dsn, user=role("nobody"), password="test"))
    assert "superuser" in str(raised.value.hint)


@pytest.mark.parametrize(
    ("fact", "value", "message"),
    [
        ("MINIMUM_SERVER", 990_000, "pgps needs 99 or newer"),
        ("LANGUAGE", "no_such_language", "has no PL/Python 3"),
    ],
)
def test_a_server_that_cannot_carry_it_is_refused(
    empty_database: str, monkeypatch: pytest.MonkeyPatch, fact: str, value: object, message: str
) -> None:
    monkeypatch.setattr(install, fact, value)
    with pytest.raises(InstallError, match=message) as raised:
        install.install(empty_database)
    assert raised.value.hint


def test_a_server_that_is_not_there_is_a_lost_connection(tmp_path: Path) -> None:
    with pytest.raises(ConnectionLost):
        install.status(make_conninfo(host=str(tmp_path), dbname="postgres"))


def test_alembic_alone_installs_too(empty_database: str) -> None:
    subprocess.run(
        [sys.executable, "-m", "alembic", "upgrade", "head"],
        cwd=ROOT,
        env={"PATH": os.environ["PATH"], "PGPS_DSN": empty_database},
        check=True,
        capture_output=True,
    )
    assert install.status(empty_database).up_to_date


def test_public_may_execute_nothing_of_the_internals(dsn: str, admin: psycopg.Connection) -> None:
    rows = admin.execute(
        """
        select p.oid::regprocedure::text from pg_proc p
        where p.pronamespace = 'pgps_internal'::regnamespace
          and (p.proacl is null or exists (select from aclexplode(p.proacl) where grantee = 0))
        """
    ).fetchall()
    assert rows == []
