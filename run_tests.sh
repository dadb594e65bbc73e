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
run() { echo "== $*"; "$venv/bin/$1" "${@:2}"; }
run ruff check .
run ruff format --check .
run mypy
run lint-imports
# Two processes, a file at a time in each: half the time, and cluster tests do not meet each other.
run pytest -n 2 --dist loadfile "$@"
