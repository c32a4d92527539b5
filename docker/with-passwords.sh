#!/bin/sh
# Runs a command, and gives libpq the passwords that the container has: each file in /run/secrets is named as the role whose password
# it holds, and PGPS_LOGINS says where these roles log in, as "role@host role@host …". A link's connection string, which stands in the
# database, leads none of them anywhere else. They go into libpq's own password file, so that no environment has them, and `docker
# compose exec` finds them, too.
set -eu
umask 077
for login in ${PGPS_LOGINS:-}; do
    role=${login%@*}
    file="${PGPS_SECRETS:-/run/secrets}/$role"
    [ -f "$file" ] || { echo "with-passwords: there is no file $file for $login" >&2; exit 1; }
    printf '%s:*:*:%s:%s\n' "${login##*@}" "$role" "$(head -n 1 "$file" | sed 's/[\\:]/\\&/g')"
done > "$HOME/.pgpass"
exec "$@"
