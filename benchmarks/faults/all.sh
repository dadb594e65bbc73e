#!/usr/bin/env bash
# Every fault run of a release, one after the other, in the repository's folder:
#
#     bash benchmarks/faults/all.sh OUT
#
# Two quiet cores need some hours. OUT/log gets a line for each run, OUT/NAME.json what it printed.
# The same command goes on where it was stopped: what ended well is not run again.
set -uo pipefail
out=${1:?usage: bash benchmarks/faults/all.sh OUT}
mkdir -p "$out"

run() {
  local name=$1 begun=$SECONDS status
  shift
  [ -e "$out/$name.ok" ] && return
  "${PYTHON:-python3}" -m "$@" > "$out/$name.json" 2> "$out/$name.err" && touch "$out/$name.ok"
  status=$?
  echo "$name: status $status, $((SECONDS - begun)) s: $*" | tee -a "$out/log"
}

faults() { run "$1" benchmarks.faults "${@:2}" --each 20; }

for mode in async sync; do
  faults "standbys-$mode" servers --replicas 1 --mode "$mode" --kills 100 --seed 11
  faults "servers-$mode" servers --mode "$mode" --kills 100 --seed 12
  faults "schedulers-$mode" schedulers --mode "$mode" --kills 50 --seed 13
  faults "workers-$mode" workers --mode "$mode" --kills 100 --seed 14
  faults "two-$mode" two --mode "$mode" --kills 25 --seed 15
done
for control in marks repeats views nothing; do
  run "control-$control" benchmarks.faults servers --control "$control" --each 2 --passes 6
done
run control-journal benchmarks.faults schedulers --control journal
run network benchmarks.faults network --partitions 50
run relay benchmarks.faults relay --messages 1000000
run pauses benchmarks.faults pauses
run strangers-key benchmarks.strangers --key --frames 1000000 --passes 100
run strangers benchmarks.strangers --no-key --frames 1000000 --passes 100
run cost benchmarks.cost --rows 1M --passes 3 --repeat 5
run modes benchmarks.modes
for first in $(seq 0 250 9750); do
  run "seeds-$first" tests.simulate "$first" $((first + 250)) --rows 40
done
