#!/bin/sh
# Raw tables to feature shards: extract.sh [JOB] [options of `ctrps extract`]
#
#   feature_extract/extract.sh conf/taobao_fm.yaml --set sample.dir=sample/orig
set -eu

root=$(cd "$(dirname "$0")/.." && pwd)
job=$root/conf/taobao_lr.yaml
case "${1-}" in
    '' | -*) ;;
    *) job=$1; shift ;;
esac
exec "${PYTHON:-python}" -m ctrps extract -c "$job" "$@"
