#!/bin/sh
# Runs a command with the password for libpq that is in the file PGPS_PASSWORD_FILE, so that it is in no container's configuration.
set -eu
if [ -n "${PGPS_PASSWORD_FILE:-}" ]; then
    PGPASSWORD=$(cat "$PGPS_PASSWORD_FILE")
    export PGPASSWORD
fi
exec "$@"
