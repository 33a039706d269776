#!/usr/bin/env bash
# Decides whether version $NEW may replace the version of the label $LIVE, with gates under load and a comparison.
# Needs a running server of both and tpuserve-loadtests. Writes reports to $REPORTS.
#
#   MODEL=digits NEW=4 RATE=200 deploy/ci/loadtest.sh
#
# TPUSERVE_API_KEY is the key of a server that requires one, with the roles predict and read.
# RUN_OPTIONS and COMPARE_OPTIONS are further options of `tpuserve loadtest run` and `compare`. They override those below.
#
# Exit codes: 0 passed, 1 requests failed, 97 the sample was too small, 98 the load generator
# was too slow for a result, 99 a gate failed, 130 interrupted.
set -uo pipefail

: "${MODEL:?Set it to the name of the model to test.}"
RATE=${RATE:-200}
LIVE=${LIVE:-stable}
P99=${P99:-50ms}
GRPC=${GRPC:-localhost:8500}
REPORTS=${REPORTS:-reports}
mkdir -p "$REPORTS"
# export.sh wrote the number.
NEW=${NEW:-$(cat "$REPORTS/version")}
: "${NEW:?Set it to the version to test.}"

judge() {
  case $1 in
    0) return ;;
    # An unmeasured gate counts as failed.
    97) message="The sample was too small for a result. Use a longer load or more requests." ;;
    98) message="The load generator was too slow for a result. Use a larger machine or reduce the load." ;;
    99) message="Do not replace version '$LIVE' of $MODEL with version $NEW: $2." ;;
    *) message="The load test did not run or requests failed (exit code $1). Its output above gives the reason." ;;
  esac
  # Print an annotation on GitHub, and a plain line elsewhere.
  if [ -n "${GITHUB_ACTIONS:-}" ]; then echo "::error title=Load test::$message"; else echo "$message" >&2; fi
  exit "$1"
}

# shellcheck disable=SC2086 # the options are separate words
tpuserve loadtest run "$MODEL" --version "$NEW" --grpc "$GRPC" --rate "$RATE" --duration 1m --warm-up 10s \
  --fail-if "p99>$P99" 'error_rate>0.1%' --junit "$REPORTS/load.xml" --html "$REPORTS/load.html" ${RUN_OPTIONS:-}
judge $? "a gate failed under load"

# shellcheck disable=SC2086
tpuserve loadtest compare "$MODEL" "$LIVE" "$NEW" --grpc "$GRPC" --rate "$RATE" --rounds 6 --duration 20s \
  --least-effect 0.1 --junit "$REPORTS/compare.xml" --html "$REPORTS/compare.html" ${COMPARE_OPTIONS:-}
judge $? "it is slower"
