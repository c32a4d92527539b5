#!/bin/sh
# Run once, when the server makes its database: the role that other brokers log in as.
set -eu
psql --no-psqlrc --set ON_ERROR_STOP=1 --set "password=$POSTGRES_PASSWORD" --username "$POSTGRES_USER" --dbname "$POSTGRES_DB" <<'SQL'
create role peer login password :'password';
SQL
