#!/usr/bin/env bash
# Makes version $NEW live on every production server, or moves the labels back. Needs tpuserve-loadtests. Writes the
# report to $REPORTS.
#
#   MODEL=digits CONFIG=models.config PRODUCTION=models.example:8500 \
#     REPLICAS='10.4.0.7:8500 10.4.1.9:8500' RATE=200 deploy/ci/rollout.sh
#
# PRODUCTION is the address for the load, such as a balancer. REPLICAS are all servers that must get the labels:
# HOST:PORT, or dns:NAME:PORT for every address of a headless Service. Without REPLICAS, PRODUCTION is the only server.
# For clients of REST, add the REST ports: dns:http://NAME:PORT, or http://HOST:PORT of each server.
# SOURCE=git-patch commits and pushes $CONFIG, which the servers then follow through GitOps.
# TPUSERVE_API_KEY is a key with the roles predict and read, and TPUSERVE_CONTROL_API_KEY one with the role control.
# ROLLOUT_OPTIONS are further options of `tpuserve rollout`.
#
# Exit codes: those of `tpuserve rollout`.
set -euo pipefail

: "${MODEL:?Set it to the name of the model to roll out.}"
: "${CONFIG:?Set it to the configuration file of the production servers.}"
: "${PRODUCTION:?Set it to the gRPC address of the production servers.}"
RATE=${RATE:-200}
SOURCE=${SOURCE:-file}
REPORTS=${REPORTS:-reports}
mkdir -p "$REPORTS"
# export.sh wrote the number.
NEW=${NEW:-$(cat "$REPORTS/version")}
REPLICA_OPTIONS=$(for address in ${REPLICAS:-}; do echo "--replicas $address"; done)

# A model that was trained again gives other answers, so the rollout skips the parity step.
# shellcheck disable=SC2086 # the options are separate words
tpuserve rollout "$MODEL" --to "$NEW" --source "$SOURCE" --model_config_file "$CONFIG" --grpc "$PRODUCTION" \
  --rate "$RATE" --no-parity --html "$REPORTS/rollout.html" --junit "$REPORTS/rollout.xml" --execute \
  ${REPLICA_OPTIONS:-} ${ROLLOUT_OPTIONS:-}
