#!/usr/bin/env bash
# Installs what is missing: PostgreSQL with PL/Python 3, PgBouncer, Chromium, Prometheus and venv from Debian, for Spark
# Java and the JDBC driver, for profiles linux-perf, Python packages into .venv.
# Run again it does nothing but look.
set -euo pipefail
cd "$(dirname "$0")/.."

oldest_postgresql=15
oldest_python="(3, 11)"
oldest_java=17
extras="${1:-dev,demo,spark}"

say() { printf '==> %s\n' "$*" >&2; }
fail() { printf 'error: %s\n' "$*" >&2; exit 1; }

# The newest server major on this machine, empty when there is none new enough.
installed_major() {
    local directory major newest=""
    for directory in /usr/lib/postgresql/*/bin; do
        [ -x "$directory/initdb" ] || continue
        major=$(basename "$(dirname "$directory")")
        [ "$major" -ge "$oldest_postgresql" ] || continue
        if [ -z "$newest" ] || [ "$major" -gt "$newest" ]; then newest=$major; fi
    done
    printf '%s' "$newest"
}

has_plpython() { [ -e "/usr/share/postgresql/$1/extension/plpython3u.control" ]; }

# The major that Debian's metapackage brings: 15 on bookworm, 17 on trixie.
offered_major() {
    apt-cache depends postgresql 2>/dev/null | sed -n 's/^ *Depends: postgresql-\([0-9]*\)$/\1/p' | head -n 1
}

find_python() {
    local candidate
    for candidate in python3 /usr/bin/python3 python3.14 python3.13 python3.12 python3.11; do
        if "$candidate" -c "import ensurepip, sys, venv; sys.exit(sys.version_info < $oldest_python)" 2>/dev/null; then
            command -v "$candidate"
            return
        fi
    done
}

as_root() {
    if [ "$(id -u)" -eq 0 ]; then
        "$@"
    elif command -v sudo >/dev/null; then
        say "this needs root; running with sudo: $*"
        sudo "$@"
    else
        fail "not root and no sudo here; run as root: $*"
    fi
}

apt_install() {
    command -v apt-get >/dev/null || fail "missing: $* (names of Debian's packages); install them and run this again"
    say "installing $*"
    local install=(env DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends)
    as_root "${install[@]}" "$@" || {
        say "reading the package lists, which may be out of date, and trying again"
        as_root apt-get update
        as_root "${install[@]}" "$@"
    }
}

install_packages() {
    if [ -n "${PGPS_PG_BIN:-}" ]; then
        say "using the PostgreSQL in PGPS_PG_BIN=$PGPS_PG_BIN"
    else
        local major
        major=$(installed_major)
        if [ -z "$major" ] || ! has_plpython "$major"; then install_postgresql "$major"; fi
    fi
    if [ ! -x .venv/bin/python ] && [ -z "$(find_python)" ]; then apt_install python3 python3-venv; fi
    # Tests run through it.
    if ! command -v pgbouncer >/dev/null && [ ! -x /usr/sbin/pgbouncer ]; then apt_install pgbouncer; fi
    # The console is tested in a browser, and the alert rules with Prometheus' own tool.
    case ",$extras," in *,dev,*)
        if ! command -v chromium >/dev/null; then apt_install chromium; fi
        if ! command -v promtool >/dev/null; then apt_install prometheus; fi ;;
    esac
    case ",$extras," in *,profile,*)
        if ! command -v perf >/dev/null; then apt_install linux-perf; fi ;;
    esac
}

install_postgresql() {
    local major=$1
    if command -v apt-get >/dev/null && [ -z "$(offered_major)" ]; then
        say "reading the package lists"
        as_root apt-get update
    fi
    if [ -n "$major" ]; then
        apt_install "postgresql-plpython3-$major"
        return
    fi
    major=$(offered_major)
    [ "${major:-0}" -ge "$oldest_postgresql" ] ||
        fail "Debian offers PostgreSQL ${major:-none} here; version $oldest_postgresql or newer is needed"
    apt_install postgresql "postgresql-plpython3-$major"
}

# Java 17 or newer, and PostgreSQL's JDBC driver with what it needs for SCRAM. PGPS_WITHOUT_SPARK=1 does without.
install_java() {
    local missing=()
    if ! has_java; then missing+=("$(offered_java)"); fi
    if [ -z "${PGPS_JDBC_JAR:-}" ] && [ ! -e /usr/share/java/postgresql.jar ]; then
        missing+=(libpostgresql-jdbc-java libscram-java)
    fi
    if [ "${#missing[@]}" -gt 0 ]; then apt_install "${missing[@]}"; fi
}

has_java() {
    local java="${JAVA_HOME:+$JAVA_HOME/bin/}java"
    command -v "$java" >/dev/null || return 1
    local major
    major=$("$java" -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p' | head -n 1)
    [ "${major:-0}" -ge "$oldest_java" ]
}

# 17 on bookworm, 21 on trixie.
offered_java() {
    local major
    if command -v apt-get >/dev/null && ! apt-cache show default-jre-headless >/dev/null 2>&1; then
        say "reading the package lists"
        as_root apt-get update >&2
    fi
    for major in 17 21 25; do
        if apt-cache show "openjdk-$major-jre-headless" >/dev/null 2>&1; then break; fi
    done
    printf 'openjdk-%s-jre-headless' "$major"
}

install_python_packages() {
    local stamp=".venv/.installed-${extras//,/-}"
    if [ -e "$stamp" ] && [ ! pyproject.toml -nt "$stamp" ]; then return; fi
    if [ ! -x .venv/bin/pip ]; then
        local python
        python=$(find_python)
        [ -n "$python" ] || fail "no Python 3.11 or newer with venv; install python3-venv, or set PATH"
        say "making .venv with $python"
        "$python" -m venv .venv
    fi
    say "installing Python packages into .venv (extras: $extras)"
    .venv/bin/pip install --quiet --disable-pip-version-check --editable ".[$extras]"
    touch "$stamp"
}

if [ -n "${PGPS_WITHOUT_SPARK:-}" ]; then
    extras=$(printf '%s' "$extras" | sed 's/,spark//')
fi
install_packages
case ",$extras," in *,spark,*) install_java ;; esac
install_python_packages
