#!/usr/bin/env bash
# Unpacks the plugins of Debian's MariaDB server into the user's cache: they come with the package that also makes a database and starts
# it, which is not wanted here. Of the same version as the server programs that are installed.
set -euo pipefail
root=${XDG_CACHE_HOME:-$HOME/.cache}/replicator/mariadb-plugins
plugin=usr/lib/mysql/plugin/file_key_management.so
version=$(dpkg-query -W -f '${Version}' mariadb-server-core)

[ "$(cat "$root/version" 2>/dev/null || true)" = "$version" ] && { printf 'the plugins are there: %s\n' "$root"; exit 0; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
(cd "$work" && apt-get download -qq -o APT::Sandbox::User=root "mariadb-server=$version")
dpkg -x "$work"/*.deb "$work/unpacked"
[ -e "$work/unpacked/$plugin" ] || { printf 'install_mariadb_plugins: the package holds no %s\n' "$plugin" >&2; exit 1; }
mkdir -p "$root"
rm -rf "$root/plugin"
mv "$work/unpacked/$(dirname $plugin)" "$root/plugin"
printf '%s' "$version" >"$root/version"
printf 'the plugins are unpacked: %s\n' "$root"
