#!/bin/sh
# Runs a command, and gives libpq the passwords that the container has: each file in /run/secrets is named as the role whose password
# it holds. They go into libpq's own password file, so that no environment has them, and `docker compose exec` finds them, too.
set -eu
umask 077
for file in "${PGPS_SECRETS:-/run/secrets}"/*; do
    [ ! -f "$file" ] || printf '*:*:*:%s:%s\n' "${file##*/}" "$(head -n 1 "$file" | sed 's/[\\:]/\\&/g')"
done > "$HOME/.pgpass"
exec "$@"
