"""A worker logs in with a certificate where the server asks for one, and asks for no password."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from pgps.embedded import EmbeddedCluster
from pgps_worker.config import WorkerConfig
from pgps_worker.outward import outward
from tests.fix_db import wait_until


@pytest.fixture
def certificates(tmp_path: Path) -> Path:
    """An authority, and what it has signed for the server and for the role `linker`."""

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=tmp_path, check=True, capture_output=True)

    new = ["req", "-newkey", "rsa:2048", "-nodes"]
    openssl(*new, "-x509", "-keyout", "ca.key", "-out", "ca.crt", "-subj", "/CN=authority", "-days", "2")
    (tmp_path / "names").write_text("subjectAltName=IP:127.0.0.1\n")
    for name in ("server", "linker"):
        openssl(*new, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
        signed = ["-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2", "-extfile", "names"]
        openssl("x509", "-req", "-in", f"{name}.csr", "-out", f"{name}.crt", *signed)
    return tmp_path


def gets_in(dsn: str) -> bool:
    try:
        with psycopg.connect(dsn) as session:
            return session.info.user == "linker" and bool(session.pgconn.ssl_in_use)
    except psycopg.OperationalError:
        return False


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificates")
def test_a_certificate_is_as_good_as_a_password(own_cluster: EmbeddedCluster, certificates: Path) -> None:
    data = own_cluster.directory / "data"
    for name in ("ca.crt", "server.crt", "server.key"):
        target = data / name
        shutil.copyfile(certificates / name, target)
        target.chmod(0o600)
        shutil.chown(target, data.stat().st_uid, data.stat().st_gid)
    with own_cluster.connect() as admin:
        for setting, value in (
            ("ssl_ca_file", "ca.crt"),
            ("ssl_cert_file", "server.crt"),
            ("ssl_key_file", "server.key"),
            ("ssl", "on"),
        ):
            admin.execute(f"alter system set {setting} = '{value}'".encode())
        admin.execute("create role linker login")
        (own_cluster.directory / "pg_hba.conf").write_text(
            "local all all trust\nhostssl all linker 127.0.0.1/32 cert\n"
        )
        admin.execute("select pg_reload_conf()")
    there = make_conninfo(
        own_cluster.dsn(tcp=True),
        user="linker",
        sslmode="verify-full",
        sslrootcert=str(certificates / "ca.crt"),
        passfile=str(certificates / "none"),
    )
    keys = {"sslcert": str(certificates / "linker.crt"), "sslkey": str(certificates / "linker.key")}
    # The server reads its files again a moment later.
    wait_until(lambda: gets_in(outward(WorkerConfig(), make_conninfo(there, **keys)).dsn), what="it gets in")
    with pytest.raises(psycopg.OperationalError, match="certificate"):
        psycopg.connect(outward(WorkerConfig(), there).dsn)
    with pytest.raises(psycopg.OperationalError, match="method requirement"):
        psycopg.connect(outward(WorkerConfig(link_auth="scram-sha-256"), make_conninfo(there, **keys)).dsn)
