#!/usr/bin/env bash
# Unpacks a server of a Debian suite, with every library it needs, into a folder of its own; nothing of the system is changed.
#
#   tools/unpack_debian.sh SUITE PACKAGE FOLDER PROGRAM
#
# The packages are fetched by apt with an empty package status, so that all dependencies come along, and unpacked with
# dpkg -x; the server runs through the libraries' own dynamic loader. A folder that already has PROGRAM is left as it is.
set -euo pipefail

[ $# = 4 ] || { printf 'usage: unpack_debian SUITE PACKAGE FOLDER PROGRAM\n' >&2; exit 2; }
readonly suite=$1 package=$2 root=$3 program=$4

say() { printf '%s\n' "$*"; }
fail() { printf 'unpack_debian: %s\n' "$*" >&2; exit 1; }

[ -x "$root/$program" ] && { say "$package of $suite is there: $root"; exit 0; }
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
say "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror $suite main" >"$work/sources.list"
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
apt-get install -y -qq --download-only -o Debug::NoLocking=1 "$package" >/dev/null
for file in "$work"/cache/archives/*.deb; do
  dpkg -x "$file" "$work/unpacked"
done
rm -rf "$work"/unpacked/usr/share/{doc,man,locale}
mkdir -p "$(dirname "$root")"
# Another set-up may have been faster.
[ -e "$root" ] || mv "$work/unpacked" "$root"
[ -x "$root/$program" ] || fail "the packages hold no $program"
say "$package of $suite is unpacked: $root"
