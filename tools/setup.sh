#!/usr/bin/env bash
# Makes .venv with the host, every plugin of this repository and the tools, all at the versions in requirements.lock.
#
#   tools/setup.sh [--without-servers]
#
# Quick to repeat: .venv/.setup-stamp holds a hash of everything the result depends on, and nothing is done while it fits.
# What is installed outside .venv is said first: Java and the server programs of PostgreSQL and MariaDB, and ODBC with
# FreeTDS, by apt, where they are missing; the Delta jars, which Spark puts into its Ivy cache; a MySQL server, plugins of MariaDB and Prometheus, unpacked into the user's cache; and
# chromium with its driver, by apt.
# The demo from PostgreSQL needs no server programs: its PostgreSQL is a Python package. A later run without the option adds them.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly venv=.venv
readonly stamp=$venv/.setup-stamp
# The same hash, once the server programs were looked after too.
readonly servers_stamp=$venv/.servers-stamp
readonly log=$venv/setup.log

with_servers=true
case ${1:-} in
  '') ;;
  --without-servers) with_servers=false ;;
  *) printf 'usage: tools/setup.sh [--without-servers]\n' >&2; exit 2 ;;
esac
readonly with_servers

say() { printf '%s\n' "$*"; }
fail() { printf 'setup: %s\n' "$*" >&2; exit 1; }

# A step's output goes to the log and is shown only if the step fails.
quietly() {
  local what=$1 began=$SECONDS
  shift
  printf '  %s … ' "$what"
  printf '\n== %s\n' "$*" >>"$log"
  if "$@" >>"$log" 2>&1; then
    printf '%ss\n' $((SECONDS - began))
  else
    printf 'failed\n'
    tail -n 60 "$log" >&2
    fail "$what failed; the whole output is in $log"
  fi
}

# -- what the machine has ---------------------------------------------------------------------------------------------

# Candidates are run, not only looked up: a version manager's shim may exist and refuse to start.
find_python() {
  local candidate
  for candidate in ${PYTHON:-} python3.11 python3.12 python3.13 python3 python /usr/bin/python3; do
    if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
      command -v "$candidate"
      return
    fi
  done
  return 1
}

java_works() {
  local java=java version
  [ -n "${JAVA_HOME:-}" ] && java=$JAVA_HOME/bin/java
  version=$("$java" -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p' | head -n 1)
  [ -n "$version" ] && [ "$version" -ge 17 ]
}

postgresql_works() {
  local candidate
  for candidate in /usr/lib/postgresql/*/bin/initdb /usr/pgsql-*/bin/initdb "$(command -v initdb || true)" \
    "$(pg_config --bindir 2>/dev/null || true)/initdb"; do
    [ -x "$candidate" ] && return 0
  done
  return 1
}

mariadb_works() {
  [ -n "$(PATH=$PATH:/usr/sbin:/usr/local/sbin command -v mariadbd || true)" ] && command -v mysql_install_db >/dev/null
}

# The driver manager, which pyodbc loads, the FreeTDS driver, and the libraries that Microsoft's driver needs.
odbc_works() {
  PATH=$PATH:/usr/sbin:/sbin ldconfig -p 2>/dev/null | grep -F libodbc.so.2 >/dev/null || return 1
  PATH=$PATH:/usr/sbin:/sbin ldconfig -p 2>/dev/null | grep -F libltdl.so.7 >/dev/null || return 1
  PATH=$PATH:/usr/sbin:/sbin ldconfig -p 2>/dev/null | grep -F libgssapi_krb5.so.2 >/dev/null || return 1
  compgen -G '/usr/lib/*/odbc/libtdsodbc.so' >/dev/null
}

chromium_works() { command -v chromium >/dev/null && command -v chromedriver >/dev/null; }

venv_module_works() { "$python" -c 'import venv, ensurepip' 2>/dev/null; }

# -- system packages --------------------------------------------------------------------------------------------------

as_root() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo -n "$@"; fi; }

can_install() {
  command -v apt-get >/dev/null || return 1
  [ "$(id -u)" = 0 ] || sudo -n true 2>/dev/null
}

apt_install() {
  as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends -o Dpkg::Use-Pty=0 "$@"
}

newest_java_package() {
  local package
  for package in openjdk-17-jre-headless openjdk-21-jre-headless default-jre-headless; do
    # Not `grep -q`: it would end the pipe early, and pipefail would take that for a failure.
    if apt-cache policy "$package" 2>/dev/null | grep 'Candidate: [0-9]' >/dev/null; then
      say "$package"
      return
    fi
  done
  return 1
}

install_postgresql() {
  # Only the programs are needed. Debian would also make a cluster and start it, unless it is told so beforehand.
  if [ ! -e /etc/postgresql-common/createcluster.conf ]; then
    as_root mkdir -p /etc/postgresql-common
    say "create_main_cluster = false" | as_root tee /etc/postgresql-common/createcluster.conf >/dev/null
  fi
  apt_install -o Dpkg::Options::=--force-confold postgresql
}

# MySQL is no package of Debian stable: it is unpacked beside the system. Where that cannot be done, the suite runs on
# MariaDB alone, and says so.
install_mysql() {
  printf '  MySQL, unpacked beside the system (about 70 MB the first time) … '
  if tools/install_mysql.sh >>"$log" 2>&1; then
    say "there"
  else
    say "failed"
    say "setup: WARNING: NO MYSQL. Tests of the MySQL source run on MariaDB only. $(tail -n 1 "$log")" >&2
  fi
}

install_mariadb_plugins() {
  printf '  plugins of MariaDB, for the test of an encrypted log … '
  if tools/install_mariadb_plugins.sh >>"$log" 2>&1; then
    say "there"
  else
    say "failed"
    say "setup: WARNING: NO PLUGINS OF MARIADB. Its encrypted log is not tested. $(tail -n 1 "$log")" >&2
  fi
}

# Without a browser the tests of the dashboard are skipped, and say so.
install_chromium() {
  printf '  chromium and its driver, for the tests of the dashboard (about 100 MB the first time) … '
  if chromium_works; then
    say "there"
  elif can_install && as_root apt-get update -qq >>"$log" 2>&1 && apt_install chromium chromium-driver >>"$log" 2>&1; then
    say "installed"
  else
    say "failed"
    say "setup: WARNING: NO CHROMIUM. The dashboard is not tested. Install chromium and chromium-driver." >&2
  fi
}

install_prometheus() {
  printf '  Prometheus, for the test of the metrics, unpacked beside the system (about 60 MB the first time) … '
  if tools/install_prometheus.sh >>"$log" 2>&1; then
    say "there"
  else
    say "failed"
    say "setup: WARNING: NO PROMETHEUS. That it reads the metrics and the rules is not tested. $(tail -n 1 "$log")" >&2
  fi
}

install_system_packages() {
  local missing=() by_hand=()
  venv_module_works || { missing+=("python3-venv"); by_hand+=("Python's venv module (python3-venv)"); }
  java_works || { missing+=("java"); by_hand+=("Java 17 or later (openjdk-17-jre-headless)"); }
  if $with_servers; then
    postgresql_works || { missing+=("postgresql"); by_hand+=("PostgreSQL's server programs, 13 or later (postgresql)"); }
    mariadb_works || { missing+=("mariadb"); by_hand+=("MariaDB's server programs, 10.5 or later (mariadb-server-core)"); }
    odbc_works || { missing+=("odbc"); by_hand+=("unixODBC and the FreeTDS driver (unixodbc, tdsodbc, libltdl7, libgssapi-krb5-2)"); }
  fi
  [ ${#missing[@]} -eq 0 ] && return 0

  say "Beyond Python packages this machine needs:"
  printf '  - %s\n' "${by_hand[@]}"
  can_install || fail "these cannot be installed without apt-get and root (or sudo without a password). Install them and run \`make setup\` again."
  say "They are installed by apt-get now; no database is made or started."

  quietly "apt-get update" as_root apt-get update
  local package
  for package in "${missing[@]}"; do
    case $package in
      java) quietly "Java" apt_install "$(newest_java_package)" ;;
      postgresql) quietly "PostgreSQL's server programs" install_postgresql ;;
      # Without the packages that would make a database and start it.
      mariadb) quietly "MariaDB's server programs" apt_install mariadb-server-core mariadb-client-core ;;
      odbc) quietly "unixODBC and FreeTDS" apt_install unixodbc tdsodbc libltdl7 libgssapi-krb5-2 ;;
      *) quietly "$package" apt_install "$package" ;;
    esac
  done
  java_works || fail "Java 17 or later is still not found; set JAVA_HOME."
  venv_module_works || fail "$python still has no venv module; name another Python 3.11 or later: make setup PYTHON=…"
}

# -- Python packages --------------------------------------------------------------------------------------------------

fingerprint() {
  {
    "$python" -c 'import sys; print(sys.version, sys.prefix)'
    pwd
    cat requirements.lock tools/pip.lock pyproject.toml plugins/*/*/pyproject.toml testbed/pyproject.toml testing/pyproject.toml tools/setup.sh tools/install_mysql.sh tools/install_mariadb_plugins.sh tools/install_prometheus.sh tools/unpack_debian.sh tools/resolve_jars.py tools/class_archive.py testbed/replicator_testbed/spark/java.py
  } | "$python" -c 'import hashlib, sys; print(hashlib.sha256(sys.stdin.buffer.read()).hexdigest())'
}

make_venv() {
  # A folder from another Python, or one that was moved, cannot be mended by pip.
  if [ -e $venv ] && ! $venv/bin/python -m pip --version 2>/dev/null | grep -F "$PWD/$venv/" >/dev/null; then
    rm -rf $venv
  fi
  [ -e $venv ] || "$python" -m venv $venv
}

pip() { $venv/bin/python -m pip --disable-pip-version-check --no-input "$@"; }

install_packages() {
  local editable=(-e .) project
  for project in plugins/*/*/pyproject.toml testbed/pyproject.toml testing/pyproject.toml; do
    editable+=(-e "$(dirname "$project")")
  done
  # The pip that comes with Python 3.11 takes the newest version, not the locked one, of a package that is also required with an extra.
  quietly "a newer pip" pip install --require-hashes -r tools/pip.lock
  quietly "locked packages (PySpark is large: one to three minutes the first time)" \
    pip install --require-hashes -r requirements.lock
  # The lock names every dependency and the build backend, so nothing is resolved and nothing is downloaded here.
  quietly "the host and its plugins, editable" pip install --no-deps --no-build-isolation "${editable[@]}"
}

# -- in order ---------------------------------------------------------------------------------------------------------

if ! python=$(find_python) && can_install; then
  say "No Python 3.11 or later is found; apt-get installs python3 and python3-venv."
  as_root apt-get update -qq && apt_install python3 python3-venv >/dev/null
fi
python=$(find_python) || fail "no Python 3.11 or later is found; install one or name it: make setup PYTHON=/path/to/python3"
# The link's end, so that the stamp does not depend on the door one came in by.
python=$("$python" -c 'import os, sys; print(os.path.realpath(getattr(sys, "_base_executable", sys.executable)))')

wanted=$(fingerprint)
packages_fit() {
  [ "$(cat $stamp 2>/dev/null || true)" = "$wanted" ] && java_works && $venv/bin/python tools/resolve_jars.py --check
}
servers_fit() {
  ! $with_servers || { [ "$(cat $servers_stamp 2>/dev/null || true)" = "$wanted" ] && postgresql_works && mariadb_works && odbc_works; }
}

if packages_fit && servers_fit; then
  say "setup: .venv is up to date"
  exit 0
fi

mkdir -p "$(dirname "$log")"
: >"$log.new"
install_system_packages
if ! packages_fit; then
  make_venv
  say "Set-up installs into .venv: the packages of requirements.lock, the host and the plugins."
  say "Outside it: the Delta jars (about 90 MB), which Spark fetches into its Ivy cache."
  if $with_servers; then
    say "Also outside it, for the tests: MySQL (about 70 MB), plugins of MariaDB and Prometheus (about 60 MB), unpacked into ${XDG_CACHE_HOME:-$HOME/.cache}/replicator; chromium and its driver (about 100 MB), by apt-get."
  fi
  install_packages
  quietly "the Delta jars" $venv/bin/python tools/resolve_jars.py
  quietly "an archive of Spark's classes, so that it starts faster" $venv/bin/python tools/class_archive.py
  say "$wanted" >$stamp
fi
if $with_servers; then
  install_mysql
  install_mariadb_plugins
  install_prometheus
  install_chromium
  say "$wanted" >$servers_stamp
fi
say "setup: done; try .venv/bin/replicator --help, make demo, make test"
