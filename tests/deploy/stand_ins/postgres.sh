#!/bin/sh
# What the official image's entrypoint does with the variables that docker-compose.yml sets.
set -e
as_postgres() { setpriv --reuid postgres --regid postgres --init-groups env HOME=/var/lib/postgresql "$@"; }
mkdir -p "$PGDATA"
chown postgres:postgres "$PGDATA"
chmod 700 "$PGDATA"
if [ ! -s "$PGDATA/PG_VERSION" ]; then
  printf %s "$POSTGRES_PASSWORD" > /tmp/password
  chown postgres /tmp/password
  as_postgres initdb --username "$POSTGRES_USER" --pwfile /tmp/password --auth-local trust --auth-host scram-sha-256
  rm /tmp/password
  echo "host all all all scram-sha-256" >> "$PGDATA/pg_hba.conf"
  as_postgres pg_ctl --wait --options "-c listen_addresses=" start
  as_postgres createdb --username "$POSTGRES_USER" "$POSTGRES_DB"
  as_postgres pg_ctl --wait stop
fi
exec setpriv --reuid postgres --regid postgres --init-groups postgres -c "listen_addresses=*"
