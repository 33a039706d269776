"""Tests for the overlays of devices: what each asks of a node agrees with the flags of its servers."""

from math import prod

import pytest

from tests.deploy.kustomize import OVERLAYS, build, of_kind
from tests.deploy.manifests import Manifest, parse_flags

ACCELERATOR = "cloud.google.com/gke-tpu-accelerator"
TOPOLOGY = "cloud.google.com/gke-tpu-topology"


def deployment(overlay: str) -> Manifest:
    """Return the Deployment of an overlay that has one."""
    (found,) = of_kind(build(OVERLAYS / overlay), "Deployment").values()
    return found


def pod(overlay: str) -> Manifest:
    """Return the specification of its pods."""
    found = deployment(overlay)["spec"]["template"]["spec"]
    assert isinstance(found, dict)
    return found


def environment(overlay: str) -> dict[str, str]:
    """Return the container's environment variables."""
    return {each["name"]: each["value"] for each in pod(overlay)["containers"][0]["env"]}


def count(sizes: str, separator: str = "x") -> int:
    """Return the product of sizes such as 2x4."""
    return prod(map(int, sizes.split(separator)))


def test_a_server_on_cpus_has_as_many_threads_as_cores() -> None:
    (container,) = pod("cpu")["containers"]
    flags = parse_flags(container["args"])
    assert flags["tensorflow_intra_op_parallelism"] == int(container["resources"]["requests"]["cpu"])
    assert flags["device"] == "cpu"


@pytest.mark.parametrize(
    ("overlay", "accelerator"),
    [
        ("gke-tpu-v5e", "tpu-v5-lite-podslice"),
        ("gke-tpu-v6e", "tpu-v6e-slice"),
        ("gke-multihost", "tpu-v5-lite-podslice"),
    ],
)
def test_a_tpu_node_is_chosen_and_required(overlay: str, accelerator: str) -> None:
    (container,) = pod(overlay)["containers"]
    assert pod(overlay)["nodeSelector"][ACCELERATOR] == accelerator
    assert pod(overlay)["tolerations"] == [{"key": "google.com/tpu", "operator": "Exists", "effect": "NoSchedule"}]
    assert parse_flags(container["args"])["device"] == "tpu"
    assert container["image"].endswith("-tpu")
    requests, limits = container["resources"]["requests"], container["resources"]["limits"]
    assert requests["google.com/tpu"] == limits["google.com/tpu"]


@pytest.mark.parametrize("overlay", ["gke-tpu-v5e", "gke-tpu-v6e"])
def test_a_server_has_all_chips_of_its_slice(overlay: str) -> None:
    (container,) = pod(overlay)["containers"]
    assert int(container["resources"]["limits"]["google.com/tpu"]) == count(pod(overlay)["nodeSelector"][TOPOLOGY])
    assert "--mesh" not in "".join(container["args"])


def test_the_servers_on_several_hosts_share_the_chips_of_their_slice() -> None:
    (container,) = pod("gke-multihost")["containers"]
    chips = int(container["resources"]["limits"]["google.com/tpu"])
    assert chips * deployment("gke-multihost")["spec"]["replicas"] == count(
        pod("gke-multihost")["nodeSelector"][TOPOLOGY]
    )
    # libtpu: one process, with this host's chips alone.
    variables = environment("gke-multihost")
    assert count(variables["TPU_PROCESS_BOUNDS"], ",") == 1
    assert count(variables["TPU_CHIPS_PER_PROCESS_BOUNDS"], ",") == chips
    assert variables["TPU_VISIBLE_CHIPS"] == ",".join(map(str, range(chips)))
    assert f"--mesh=data={chips}" in container["args"]


def test_a_slice_of_several_hosts_has_no_host_for_a_surge() -> None:
    assert deployment("gke-multihost")["spec"]["strategy"]["rollingUpdate"] == {"maxSurge": 0, "maxUnavailable": 1}


@pytest.mark.parametrize("overlay", ["gke-tpu-v5e", "gke-tpu-v6e", "gke-multihost"])
def test_models_from_a_bucket_fit_into_the_cache(overlay: str) -> None:
    assert not of_kind(build(OVERLAYS / overlay), "PersistentVolumeClaim")
    (cache,) = (each for each in pod(overlay)["volumes"] if each["name"] == "cache")
    size_bytes = int(cache["emptyDir"]["sizeLimit"].removesuffix("Gi")) * 2**30
    flags = parse_flags(pod(overlay)["containers"][0]["args"])
    assert flags["storage_cache_max_bytes"] < 0.9 * size_bytes
    resources = pod(overlay)["containers"][0]["resources"]
    for kind in ("requests", "limits"):
        assert int(resources[kind]["ephemeral-storage"].removesuffix("Gi")) * 2**30 > size_bytes
    assert environment(overlay)["MODEL_BASE_PATH"].startswith("gs://")
