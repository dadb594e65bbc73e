#!/usr/bin/env bash
# Lint, types, import rules and all tests, in a virtual environment of their own.
# Needs Python 3.11 or newer with venv and pip. Arguments go to pytest.
set -euo pipefail
cd "$(dirname "$0")"
venv=.venv-test
if [ ! -x "$venv/bin/python" ]; then
  "${PYTHON:-python3}" -m venv "$venv"
fi
# pip 25.1 is the first that reads dependency groups.
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --upgrade "pip>=25.1"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --editable . --group dev
# The page of a run is tested in a browser; where none can be had, those tests are skipped.
if ! command -v chromium > /dev/null && [ "$(id -u)" = 0 ] && command -v apt-get > /dev/null; then
  (apt-get update && apt-get install --yes --no-install-recommends chromium) > /dev/null 2>&1 ||
    echo "no chromium: the tests of the page are skipped" >&2
fi
run() { echo "== $*"; "$venv/bin/$1" "${@:2}"; }
run ruff check .
run ruff format --check .
run mypy
run lint-imports
# Two processes, a file at a time in each: half the time, and cluster tests do not meet each other.
run pytest -n 2 --dist loadfile "$@"
