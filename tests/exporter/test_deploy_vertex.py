"""Tests for `tpuserve deploy vertex`: commands as a real shell reads them, and refusals."""

import json
import os
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.exporter.checked_manifests import GIB, preflight_rows, write_checked
from tests.exporter.conftest import Finished
from tests.exporter.test_deploy_render import run
from tpuserve_exporter.command.deploying import deploy

IMAGE = "us-central1-docker.pkg.dev/my-project/images/tpuserve-server:0.1.0"
CPU = ("--machine-type", "n1-standard-4")
SIGNATURES = {"serving_default": {"inputs": {"image": {"dtype": "float32", "shape": [None, 2, 2, 1]}}}}
# Prints its arguments and its standard input, each with a byte of zero at its end.
GCLOUD = """\
#!/bin/bash
printf '%s\\0' gcloud "$@"
case "$*" in *--json-request=-*) printf 'stdin %s\\0' "$(cat)" ;; esac
"""


def write_version(path: Path, signatures: object = None, **options: Any) -> Path:  # noqa: ANN401 - of write_checked
    """Write a checked version whose manifest has full signatures."""
    file = write_checked(path, **options) / "assets.extra/tpuserve/manifest.json"
    manifest = json.loads(file.read_text())
    manifest["signatures"] = SIGNATURES if signatures is None else signatures
    file.write_text(json.dumps(manifest))
    return path


def vertex(version: Path, *arguments: object, artifact: str = "gs://bucket/models/digits/3") -> Finished:
    options = ("--project", "my-project", "--region", "us-central1", "--image", IMAGE, "--artifact-uri", artifact)
    return run(deploy, "vertex", "--version", version, *options, *arguments)


def words_in_bash(script: str, tmp_path: Path) -> list[str]:
    """Check and run the script with bash. Return the words that gcloud gets, of all commands."""
    stub = tmp_path / "bin/gcloud"
    stub.parent.mkdir()
    stub.write_text(GCLOUD)
    stub.chmod(0o755)
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)
    path = f"{stub.parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(["bash"], input=script, text=True, check=True, capture_output=True, env={"PATH": path})
    assert done.stderr == ""
    return done.stdout.removesuffix("\0").split("\0")


def test_the_script_is_complete(tmp_path: Path) -> None:
    done = vertex(
        write_version(tmp_path / "digits/3"), *CPU, "--max-replicas", "3", "--env", "TPUSERVE_SERVE_DEVICE=cpu"
    )
    assert done.code == 0, done.err
    head, body = done.out.split("set -euo pipefail\n")
    assert head.startswith("#!/usr/bin/env bash\n# Version 3 of digits on Vertex AI, n1-standard-4.\n# Written by ")
    assert (
        body
        == f"""
# Upload the version as a model. The platform copies the artifact.
gcloud ai models upload \\
    --project=my-project \\
    --region=us-central1 \\
    --model-id=digits-3 \\
    --display-name=digits-3 \\
    --container-image-uri={IMAGE} \\
    --artifact-uri=gs://bucket/models/digits/3 \\
    --container-ports=8080 \\
    --container-health-route=/health \\
    --container-predict-route=/predict \\
    --container-env-vars=MODEL_NAME=digits,TPUSERVE_SERVE_DEVICE=cpu

# Create the endpoint. For the next version, render again with --endpoint.
gcloud ai endpoints create \\
    --project=my-project \\
    --region=us-central1 \\
    --endpoint-id=digits \\
    --display-name=digits

# Deploy the model, and send all requests of the endpoint to it.
gcloud ai endpoints deploy-model digits \\
    --project=my-project \\
    --region=us-central1 \\
    --model=digits-3 \\
    --display-name=digits-3 \\
    --machine-type=n1-standard-4 \\
    --min-replica-count=1 \\
    --max-replica-count=3 \\
    --traffic-split=0=100

# Predict.
gcloud ai endpoints predict digits \\
    --project=my-project \\
    --region=us-central1 \\
    --json-request=- <<'JSON'
{{"instances": [[[[0.0], [0.0]], [[0.0], [0.0]]]]}}
JSON
"""
    )


@pytest.mark.parametrize(
    "value", ["plain", "a, b", 'it\'s $HOME `id` "quoted"', "a,b;c|d", "two\nlines", "back\\slash", "", "a=b", "^x^,"]
)
def test_a_shell_reads_the_words_of_the_document(tmp_path: Path, value: str) -> None:
    options = (write_version(tmp_path / "digits/3"), *CPU, "--env", f"WORDS={value}")
    commands = vertex(*options, "--json").document["commands"]
    assert list(commands) == ["upload", "create", "deploy", "predict"]
    for words in commands.values():
        assert shlex.split(shlex.join(words)) == words
    *words, stdin = words_in_bash(vertex(*options).out, tmp_path)
    assert words == [word for one in commands.values() for word in one]
    assert json.loads(stdin.removeprefix("stdin ")) == vertex(*options, "--json").document["request"]
    (variables,) = (word for word in words if word.startswith("--container-env-vars="))
    assert read_dictionary(variables.partition("=")[2]) == {"MODEL_NAME": "digits", "WORDS": value}


def read_dictionary(text: str) -> dict[str, str]:
    """Read a value as gcloud does: https://cloud.google.com/sdk/gcloud/reference/topic/escaping."""
    delimiter = ","
    if text.startswith("^"):
        _, delimiter, text = text.split("^", 2)
    return {key: value for key, _, value in (pair.partition("=") for pair in text.split(delimiter))}


def test_a_tpu_sets_the_machine_and_the_server(tmp_path: Path) -> None:
    rows = preflight_rows("v5e:2x2", mesh={"data": 2, "model": 2}, compile_s=1000)
    version = write_version(tmp_path / "digits/3", rows=rows)
    document = vertex(version, "--tpu", "v5e:2x2", "--min-replicas", "2", "--json").document
    upload, deployed = document["commands"]["upload"], document["commands"]["deploy"]
    assert "--machine-type=ct5lp-hightpu-4t" in deployed
    assert "--min-replica-count=2" in deployed
    assert not any(word.startswith("--max-replica-count") for word in deployed)
    assert (
        "--container-env-vars=^;^MODEL_NAME=digits;TPUSERVE_SERVE_DEVICE=tpu;TPUSERVE_SERVE_MESH=data=2,model=2;"
        "TPUSERVE_SERVE_LOAD_TIMEOUT_SECONDS=4121"
    ) in upload
    assert "--container-deployment-timeout-seconds=4721" in upload
    assert document["memory_gib"] == {"needed": 17, "available": 192}


def test_the_next_version_uses_the_endpoint(tmp_path: Path) -> None:
    done = vertex(write_version(tmp_path / "digits/3"), *CPU, "--endpoint", "1234567890123456789", "--json")
    assert list(done.document["commands"]) == ["upload", "deploy", "predict"]
    assert done.document["commands"]["deploy"][4] == "1234567890123456789"


def test_a_file_is_replaced_only_with_force(tmp_path: Path) -> None:
    version, output = write_version(tmp_path / "digits/3"), tmp_path / "digits.sh"
    assert vertex(version, *CPU, "--output", output).out == f"Wrote {output}\n"
    assert output.read_text() == vertex(version, *CPU).out
    refused = vertex(version, *CPU, "--output", output)
    assert (refused.code, refused.err) == (
        5, f"error: {output} exists. Use another --output, or --force to replace it\n",
    )  # fmt: skip
    done = vertex(version, *CPU, "--output", output, "--force", "--json")
    assert done.document["files"] == [str(output)]


def test_notes_name_a_base_path_an_unknown_memory_and_a_missing_example(tmp_path: Path) -> None:
    wide = {"words": {"inputs": {"x": {"dtype": "float32", "shape": [None, 224, 224, 3]}}}}
    options = (write_version(tmp_path / "digits/3", wide), "--machine-type", "m9-standard-4")
    done = vertex(*options, "--json", artifact="gs://bucket/models/digits")
    base, memory, example = done.document["notes"]
    assert base.startswith("the server serves the newest version in gs://bucket/models/digits. Use gs://bucket/models/")
    assert memory == "the memory of m9-standard-4 is unknown here. A server needs 3 GiB"
    assert example == "no signature has a short example. Write request.json before the last command"
    assert "--json-request=request.json" in done.document["commands"]["predict"]
    assert f"# Note: {example}.\n" in vertex(*options).out


@pytest.mark.parametrize(
    ("artifact", "message"),
    [
        ("s3://bucket/models/digits/3", "'s3://bucket/models/digits/3' is not in Cloud Storage"),
        ("models/digits/3", "'models/digits/3' is not in Cloud Storage. Write gs://BUCKET/PATH/MODEL/VERSION"),
        ("gs://bucket", "gs://bucket names no folder for the model"),
        ("gs://bucket/models/digits/4", "--artifact-uri gs://bucket/models/digits/4 is version 4, and --version is 3"),
    ],
)
def test_an_artifact_outside_cloud_storage_is_refused(tmp_path: Path, artifact: str, message: str) -> None:
    refused = vertex(write_version(tmp_path / "digits/3"), *CPU, artifact=artifact)
    assert refused.code == 2
    assert message in refused.err


def test_a_directory_without_a_manifest_is_refused(tmp_path: Path) -> None:
    refused = vertex(tmp_path / "digits/3", *CPU)
    assert (refused.code, refused.err) == (
        6, f"error: {tmp_path}/digits/3 does not exist. Use the directory of a version, such as models/digits/3\n",
    )  # fmt: skip
    (tmp_path / "digits/3").mkdir(parents=True)
    assert "is not a version directory of `tpuserve export`" in vertex(tmp_path / "digits/3", *CPU).err


def test_a_tpu_without_a_check_is_refused_with_the_command(tmp_path: Path) -> None:
    version = write_version(tmp_path / "digits/3")
    refused = vertex(version, "--tpu", "v6e:1x1")
    assert refused.code == 4
    assert f"checked for v5e:1x1, and not for v6e:1x1. Run\n  tpuserve check {version} --tpu v6e:1x1" in refused.err


def test_a_machine_with_too_little_memory_is_refused_with_the_numbers(tmp_path: Path) -> None:
    version = write_version(tmp_path / "digits/3", weights_bytes=40 * GIB)
    refused = vertex(version, *CPU)
    assert (refused.code, refused.err) == (
        4,
        "error: a server needs 43 GiB of memory, and n1-standard-4 has 15 GiB. Use a larger --machine-type\n",
    )
    assert vertex(version, "--machine-type", "n1-highmem-8").code == 0
    refused = vertex(version, "--tpu", "v5e:1x1")
    assert "needs 56 GiB of memory, and ct5lp-hightpu-1t has 48 GiB. Use a larger TPU" in refused.err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((), "set either --machine-type or --tpu"),
        ((*CPU, "--tpu", "v5e:1x1"), "set either --machine-type or --tpu"),
        (("--machine-type", "ct5lp-hightpu-4t"), "ct5lp-hightpu-4t has a TPU. Use --tpu, such as --tpu v5e:2x2"),
        (("--machine-type", "n1; rm"), "'n1; rm' is not a machine type"),
        (("--tpu", "v5e:1x1", "--max-replicas", "2"), "Vertex AI does not scale machines with TPUs"),
        ((*CPU, "--min-replicas", "3", "--max-replicas", "2"), "--max-replicas 2 is below --min-replicas 3"),
        ((*CPU, "--env", "WORDS"), "--env 'WORDS' is not NAME=V"),
        ((*CPU, "--env", "AIP_HTTP_PORT=1"), "--env cannot set AIP_HTTP_PORT. Vertex AI sets it"),
        ((*CPU, "--env", "MODEL_NAME=a"), "--env cannot set MODEL_NAME. Use --model-name"),
        ((*CPU, "--env", "A=,;|#@@~~%%"), "contain all of , ; | # @@ ~~ %%. Change an --env"),
        ((*CPU, "--project", "a b"), "--project 'a b' has another form than my-project"),
        ((*CPU, "--region", "here"), "--region 'here' has another form than us-central1"),
        ((*CPU, "--endpoint", "My_Endpoint"), "'My_Endpoint' is not an ID of Vertex AI"),
        ((*CPU, "--model-name", "9digits"), "'9digits-3' is not an ID of Vertex AI"),
        ((*CPU, "--check", __file__), "--check has no effect without --tpu"),
    ],
)
def test_options_that_do_not_work_are_named(tmp_path: Path, options: tuple[str, ...], message: str) -> None:
    refused = vertex(write_version(tmp_path / "digits/3"), *options)
    assert refused.code == 2
    assert message in refused.err
