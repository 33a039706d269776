#!/usr/bin/env bash
# Exports a checkpoint as the next version of a model, and publishes it only if its answers match those of the
# checkpoint and all its programs compile for the TPU and fit. Needs tpuserve-exporter[tpu], and no TPU.
# Writes the report and the number of the version to $REPORTS.
#
#   MODEL=digits MODELS=gs://bucket/models CHECKPOINT=checkpoints BUILDER=examples.digits.model:build deploy/ci/export.sh
#
# EXPORT_OPTIONS are further options of `tpuserve export`, such as --labelled held_out.npz --expect accuracy>=0.95.
#
# Exit codes: those of `tpuserve export`. 3: an answer differs. 4: a program does not compile for $TPU or does not fit.
# 14: a metric does not meet its --expect.
set -euo pipefail

: "${MODEL:?Set it to the name of the model to export.}"
: "${CHECKPOINT:?Set it to the path of the checkpoint.}"
: "${BUILDER:?Set it to the function that builds the model, as PACKAGE.MODULE:FUNCTION.}"
TPU=${TPU:-v5e:1x1}
MODELS=${MODELS:-models}
REPORTS=${REPORTS:-reports}
mkdir -p "$REPORTS"

# Clients request the label `stable`. They get no answer of this version before the rollout moves the label.
# shellcheck disable=SC2086 # the options are separate words
tpuserve export "$CHECKPOINT" "$MODELS/$MODEL" --model "$BUILDER" --tpu "$TPU" --tpu-strict --again \
  --report "$REPORTS/export.json" --report "$REPORTS/export.html" ${EXPORT_OPTIONS:-}
python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["version"])' "$REPORTS/export.json" > "$REPORTS/version"
