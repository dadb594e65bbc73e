#!/usr/bin/env bash
# Stop the processes that start.sh started on this machine, by their PID files, never by name.
#
#   conf/cluster/stop.sh [ROLE]      default: all roles
#
# The scheduler saves a checkpoint first, and tells all nodes to end; the same commands then go on.
set -euo pipefail
var=${CTRPS_VAR:-var}
for file in "$var"/${1:-*}-*.pid; do
  [ -e "$file" ] || continue
  pid=$(cat "$file")
  if [ -n "$pid" ] && kill -0 "$pid" 2>/dev/null; then
    kill -TERM "$pid"
    echo "asked process $pid ($(basename "$file" .pid)) to stop"
  fi
  rm -f "$file"
done
