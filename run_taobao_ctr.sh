#!/usr/bin/env bash
# The main job: raw logs -> samples -> features -> training on a local cluster -> test AUC -> scores.
#
#   bash run_taobao_ctr.sh [JOB]      JOB is conf/taobao_lr.yaml (default) or conf/taobao_fm.yaml
#
# Takes the public tables if they lie in sample/orig/ (see sample/README.md), and otherwise the small
# generated logs of sample/raw/. Needs Python 3.11 or newer with venv and pip, and nothing else.
set -euo pipefail
cd "$(dirname "$0")"

job=${1:-conf/taobao_lr.yaml}
run=runs/$(basename "$job" | sed 's/\.[^.]*$//' | tr _ -)
say() { printf '\n== %s\n' "$*"; }

if [ ! -x .venv/bin/ctrps ]; then
  say "setting up .venv"
  "${PYTHON:-python3}" -m venv .venv
  .venv/bin/python -m pip install --quiet --disable-pip-version-check --editable .
fi
ctrps=.venv/bin/ctrps

logs=sample/orig
for table in raw_sample ad_feature user_profile behavior_log; do
  [ -e "$logs/$table.tar.gz" ] || logs=sample/raw
done

settings=(-c "$job" --set "sample.dir=$logs" --set "output.dir=$run")
say "extract: raw logs in $logs -> feature shards in $run/data"
"$ctrps" extract "${settings[@]}" --overwrite
say "launch: 1 scheduler, 2 servers, 2 workers"
"$ctrps" launch "${settings[@]}" -s 2 -w 2 --overwrite
say "evaluate the saved model on the test day"
"$ctrps" evaluate --model "$run/model" --data "$run/data/test-*.shard"
if [ -e "$logs/truth.json" ]; then
  .venv/bin/python -c 'import json, sys
best = json.load(open(sys.argv[1]))["test"]["best_auc"]
print(f"ceiling       AUC {best:.6f} is the best possible: these clicks are drawn from a known model")' "$logs/truth.json"
fi
say "predict: scores of the test day in $run/scores.csv"
"$ctrps" predict --model "$run/model" --data "$run/data/test-*.shard" -o "$run/scores.csv"
head -3 "$run/scores.csv"
