#!/usr/bin/env bash
# Unpacks Debian's MySQL server, which its unstable suite has and its stable one has not, into the user's cache.
# About 70 MB are fetched; some 400 MB are unpacked.
set -euo pipefail
root=${REPLICATOR_MYSQL_ROOT:-${XDG_CACHE_HOME:-$HOME/.cache}/replicator/mysql}
exec "$(dirname "$0")/unpack_debian.sh" sid mysql-server-core "$root" usr/sbin/mysqld
