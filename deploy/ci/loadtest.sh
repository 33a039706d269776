#!/usr/bin/env bash
# Decides whether the version of one label may replace the version of another, with gates under load and a comparison.
# Needs a running server and tpuserve-loadtests. Writes reports to $REPORTS.
#
#   MODEL=digits RATE=200 deploy/ci/loadtest.sh
#
# Exit codes: 0 passed, 1 requests failed, 98 the load generator was too slow for a result, 99 a gate failed.
set -uo pipefail

: "${MODEL:?Set it to the name of the model to test.}"
RATE=${RATE:-200}
LIVE=${LIVE:-stable}
NEW=${NEW:-canary}
GRPC=${GRPC:-localhost:8500}
REPORTS=${REPORTS:-reports}
mkdir -p "$REPORTS"

judge() {
  case $1 in
    0) return ;;
    # An unmeasured gate counts as failed.
    98) message="The load generator was too slow for a result. Use a larger machine or reduce the load." ;;
    99) message="Do not replace version '$LIVE' of $MODEL with '$NEW': $2." ;;
    *) message="The load test did not run or requests failed (exit code $1). Its output above gives the reason." ;;
  esac
  # Print an annotation on GitHub, and a plain line elsewhere.
  if [ -n "${GITHUB_ACTIONS:-}" ]; then echo "::error title=Load test::$message"; else echo "$message" >&2; fi
  exit "$1"
}

tpuserve loadtest run "$MODEL" --label "$NEW" --grpc "$GRPC" --rate "$RATE" --duration 1m --warm-up 10s \
  --fail-if 'p99>50ms' 'error_rate>0.1%' --junit "$REPORTS/load.xml" --html "$REPORTS/load.html"
judge $? "a gate failed under load"

tpuserve loadtest compare "$MODEL" "$LIVE" "$NEW" --grpc "$GRPC" --rate "$RATE" --rounds 6 --duration 20s \
  --least-effect 0.1 --junit "$REPORTS/compare.xml" --html "$REPORTS/compare.html"
judge $? "'$NEW' is slower"
