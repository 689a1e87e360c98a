#!/usr/bin/env bash
# Unpacks Debian's MySQL server, with every library it needs, into a folder of its own; nothing of the system is changed.
#
# Debian stable has no MySQL, its unstable suite has. Its packages are fetched by apt with an empty package status, so that
# all dependencies come along, and unpacked with dpkg -x; the server runs through the libraries' own dynamic loader.
# About 70 MB are fetched; some 400 MB are unpacked. A folder that already holds a server is left as it is.
set -euo pipefail

readonly root=${REPLICATOR_MYSQL_ROOT:-${XDG_CACHE_HOME:-$HOME/.cache}/replicator/mysql}
readonly loader=lib64/ld-linux-x86-64.so.2

say() { printf '%s\n' "$*"; }
fail() { printf 'install_mysql: %s\n' "$*" >&2; exit 1; }

[ -x "$root/usr/sbin/mysqld" ] && { say "MySQL is there: $root"; exit 0; }
command -v apt-get >/dev/null && command -v dpkg >/dev/null || fail "needs apt-get and dpkg"
[ "$(dpkg --print-architecture)" = amd64 ] || fail "only amd64 is known to work"

# The machine's own mirror, as its sources name it.
mirror=$(cat /etc/apt/sources.list /etc/apt/sources.list.d/*.list /etc/apt/sources.list.d/*.sources 2>/dev/null \
  | grep -v '^#' | grep -oE 'https?://[^ ]+/debian/?( |$)' | head -n 1 | tr -d ' ' || true)
[ -n "$mirror" ] || fail "found no Debian mirror in /etc/apt"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work"/state/lists/partial "$work"/cache/archives/partial "$work"/unpacked
: >"$work/status"
say "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror sid main" >"$work/sources.list"
cat >"$work/apt.conf" <<CONF
Dir::Etc::sourcelist "$work/sources.list";
Dir::Etc::sourceparts "/dev/null";
Dir::State "$work/state";
Dir::State::status "$work/status";
Dir::Cache "$work/cache";
APT::Architecture "amd64";
APT::Install-Recommends "false";
APT::Sandbox::User "root";
CONF
export APT_CONFIG=$work/apt.conf
apt-get update -qq
apt-get install -y -qq --download-only -o Debug::NoLocking=1 mysql-server-core >/dev/null
for package in "$work"/cache/archives/*.deb; do
  dpkg -x "$package" "$work/unpacked"
done
rm -rf "$work"/unpacked/usr/share/{doc,man,locale}
mkdir -p "$(dirname "$root")"
# Another set-up may have been faster.
[ -e "$root" ] || mv "$work/unpacked" "$root"
[ -x "$root/usr/sbin/mysqld" ] || fail "the packages hold no mysqld"
say "MySQL is unpacked: $root"
