#!/usr/bin/env bash
# Start one process of a cluster on this machine, in the background.
#
#   conf/cluster/start.sh ROLE JOB [options of `ctrps ROLE`]      ROLE: scheduler, server or worker
#
# On the first machine:  start.sh scheduler job.yaml --set cluster.scheduler=HOST:9000
# On the others:         CTRPS_SCHEDULER=HOST:9000 start.sh server job.yaml      (and worker)
# Servers on other machines also need an address that workers reach: --set cluster.server_bind=HOST:0
# All need the same job key (ctrps keygen): cluster.key_file in the job file, or CTRPS_JOB_KEY.
# Order does not matter. All machines see the same job file and the same output.dir.
# PID and log go to CTRPS_VAR (default: ./var), named by role and number, so that several
# processes of one role can run on a machine. stop.sh ends them.
set -euo pipefail
role=${1:?scheduler, server or worker} job=${2:?job file}
shift 2
var=${CTRPS_VAR:-var}
command -v ctrps >/dev/null || { echo "error: ctrps is not on PATH: activate its environment" >&2; exit 127; }
mkdir -p "$var"
number=0
while ! (set -o noclobber && : >"$var/$role-$number.pid") 2>/dev/null; do
  number=$((number + 1))
done
name=$var/$role-$number
nohup ctrps "$role" -c "$job" "$@" >"$name.log" 2>&1 </dev/null &
echo $! >"$name.pid"
echo "$role started as process $!, log in $name.log"
