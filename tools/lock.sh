#!/usr/bin/env bash
# Writes requirements.lock again: one resolution for the host, every plugin and the tools, for every supported Python.
# And tools/pip.lock: the pip that installs it.
# Arguments go to `uv pip compile`; for example `tools/lock.sh --upgrade-package ruff`.
set -euo pipefail
cd "$(dirname "$0")/.."

.venv/bin/python -m pip install --quiet uv
.venv/bin/uv pip compile pyproject.toml plugins/*/*/pyproject.toml testbed/pyproject.toml testing/pyproject.toml \
  --group pyproject.toml:test --group pyproject.toml:dev --all-extras \
  --universal --python-version 3.11 --generate-hashes --no-annotate \
  --no-emit-package replicator \
  --no-emit-package replicator-source-mysql \
  --no-emit-package replicator-source-postgresql \
  --no-emit-package replicator-source-sqlserver \
  --no-emit-package replicator-target-bigquery \
  --no-emit-package replicator-target-delta \
  --no-emit-package replicator-testbed \
  --no-emit-package replicator-testing \
  --custom-compile-command "tools/lock.sh" --no-config --quiet \
  --output-file requirements.lock "$@" >/dev/null
printf 'pip\n' | .venv/bin/uv pip compile - \
  --python-version 3.11 --generate-hashes --no-annotate --custom-compile-command "tools/lock.sh" --no-config --quiet \
  --output-file tools/pip.lock "$@" >/dev/null
