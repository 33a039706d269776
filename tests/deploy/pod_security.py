"""The profile `restricted` of Kubernetes' Pod Security Standards, and what tpuserve's pods forgo beyond it.

Source: the controls of policy.k8s.io's admission plugin, version 1.30 (kubernetes.io, "Pod Security Standards").
"""

from collections.abc import Iterator
from typing import Any, Final

_VOLUMES: Final = {
    "configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret"
}  # fmt: skip
_SECCOMP: Final = ("RuntimeDefault", "Localhost")
_SYSCTLS: Final = {
    "kernel.shm_rmid_forced", "net.ipv4.ip_local_port_range", "net.ipv4.ip_unprivileged_port_start",
    "net.ipv4.tcp_syncookies", "net.ipv4.ping_group_range", "net.ipv4.ip_local_reserved_ports",
    "net.ipv4.tcp_keepalive_time", "net.ipv4.tcp_fin_timeout", "net.ipv4.tcp_keepalive_intvl",
    "net.ipv4.tcp_keepalive_probes",
}  # fmt: skip

Spec = dict[str, Any]  # YAML data.


def violations(pod: Spec) -> list[str]:
    """Return the violations of the profile in a PodSpec."""
    return [*_of_pod(pod), *(f"{each['name']}: {wrong}" for each in containers(pod) for wrong in _of(each, pod))]


def excesses(pod: Spec) -> list[str]:
    """Return rights that the profile allows and that no program of tpuserve needs."""
    writable = [
        f"{each['name']}: its root is writable"
        for each in containers(pod)
        if not each.get("securityContext", {}).get("readOnlyRootFilesystem")
    ]
    has_token = pod.get("automountServiceAccountToken", True)
    return [*writable, *(["the token of a service account is mounted"] if has_token else [])]


def containers(pod: Spec) -> list[Spec]:
    """Return all containers of a PodSpec."""
    return [each for kind in ("initContainers", "containers", "ephemeralContainers") for each in pod.get(kind, ())]


def _of_pod(pod: Spec) -> Iterator[str]:
    context = pod.get("securityContext", {})
    yield from (f"{name} is true" for name in ("hostNetwork", "hostPID", "hostIPC") if pod.get(name))
    for volume in pod.get("volumes", ()):
        yield from (f"volume {volume['name']} is a {kind}" for kind in volume.keys() - {"name"} - _VOLUMES)
    yield from (f"sysctl {each['name']}" for each in context.get("sysctls", ()) if each["name"] not in _SYSCTLS)
    yield from _of_context(context)


def _of(container: Spec, pod: Spec) -> Iterator[str]:
    context, shared = container.get("securityContext", {}), pod.get("securityContext", {})
    yield from _of_context(context)
    if context.get("privileged"):
        yield "privileged is true"
    if context.get("allowPrivilegeEscalation") is not False:
        yield "allowPrivilegeEscalation is not false"
    if context.get("runAsNonRoot", shared.get("runAsNonRoot")) is not True:
        yield "runAsNonRoot is not true"
    if context.get("seccompProfile", shared.get("seccompProfile", {})).get("type") not in _SECCOMP:
        yield "seccompProfile is not set"
    capabilities = context.get("capabilities", {})
    if "ALL" not in capabilities.get("drop", ()):
        yield "not all capabilities are dropped"
    if added := set(capabilities.get("add", ())) - {"NET_BIND_SERVICE"}:
        yield f"capabilities {sorted(added)} are added"
    if context.get("procMount", "Default") != "Default":
        yield "procMount is not Default"
    if any(port.get("hostPort") for port in container.get("ports", ())):
        yield "a port of the host is used"


def _of_context(context: Spec) -> Iterator[str]:
    if context.get("runAsUser") == 0:
        yield "runAsUser is 0"
    if context.get("windowsOptions", {}).get("hostProcess"):
        yield "hostProcess is true"
    if context.get("seLinuxOptions", {}).keys() & {"user", "role"}:
        yield "seLinuxOptions has a user or a role"
    if context.get("appArmorProfile", {}).get("type", "RuntimeDefault") not in _SECCOMP:
        yield "appArmorProfile is Unconfined"
