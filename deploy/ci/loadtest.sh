#!/usr/bin/env bash
# Decides whether the version of one label may replace the version of another, with gates under load and a comparison.
# Needs a running server and tpuserve-loadtests. Writes reports to $REPORTS.
#
#   MODEL=digits RATE=200 deploy/ci/loadtest.sh
#
# Exit codes: 0 passed, 1 requests failed, 98 the load generator was too slow for a result, 99 a gate failed.
set -uo pipefail

: "${MODEL:?the model to load}"
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
    98) message="The load generator was the limit, so nothing is known of the server: take a larger machine, or less load." ;;
    99) message="Version '$NEW' of $MODEL is not good enough: $2." ;;
    *) message="The load test could not be run, or requests failed ($2, exit code $1)." ;;
  esac
  # Print an annotation on GitHub, and a plain line elsewhere.
  if [ -n "${GITHUB_ACTIONS:-}" ]; then echo "::error title=Load test::$message"; else echo "$message" >&2; fi
  exit "$1"
}

tpuserve loadtest run "$MODEL" --label "$NEW" --grpc "$GRPC" --rate "$RATE" --duration 1m --warm-up 10s \
  --fail-if 'p99>50ms' 'error_rate>0.1%' --junit "$REPORTS/load.xml" --html "$REPORTS/load.html"
judge $? "a gate of the load failed"

tpuserve loadtest compare "$MODEL" "$LIVE" "$NEW" --grpc "$GRPC" --rate "$RATE" --rounds 6 --duration 20s \
  --least-effect 0.1 --junit "$REPORTS/compare.xml" --html "$REPORTS/compare.html"
judge $? "it is slower than '$LIVE'"
