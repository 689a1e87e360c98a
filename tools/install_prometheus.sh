#!/usr/bin/env bash
# Unpacks Debian's Prometheus, with promtool, into the user's cache; it is never started as a service.
# About 60 MB are fetched; some 215 MB are unpacked.
set -euo pipefail
root=${REPLICATOR_PROMETHEUS_ROOT:-${XDG_CACHE_HOME:-$HOME/.cache}/replicator/prometheus}
exec "$(dirname "$0")/unpack_debian.sh" trixie prometheus "$root" usr/bin/prometheus
