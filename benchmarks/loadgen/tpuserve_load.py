"""One process of `tpuserve loadtest`'s load generator on a byte echo, which has no metadata.

loadgen.py runs it: `python benchmarks/loadgen/tpuserve_load.py grpc|rest PORT SECONDS USERS RATE [CA]`. One of USERS
and RATE is 0. CA is a file of authorities, and enables TLS. With LOADGEN_CHECKS=off, it checks no response. With
LOADGEN_CHECKS=unknown, it checks each response as if it had never received an equal one.

At the end it prints a line of JSON, like plain.py, with the reasons why the run would not be trusted.
"""

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tpuserve_loadtests.traffic.gevent_setup import give_process_to_gevent

if TYPE_CHECKING:
    from tpuserve_loadtests.requests.protocols import Protocol

WARM_UP_S = 1.0


def main() -> None:
    """Run one load with all records of a load test, and compare one response in a hundred with the expected one."""
    give_process_to_gevent()
    from benchmarks.harness import mlp_model
    from benchmarks.harness.targets import GRPC_PATH, MODEL_NAME, REST_PATH
    from benchmarks.loadgen.body import golden_answer, grpc_answer, rest_answer, values
    from tpuserve_client.exchange import Exchange
    from tpuserve_client.model import ModelSpec, Signature, TensorSpec
    from tpuserve_client.tls import Tls
    from tpuserve_loadtests.access import Access
    from tpuserve_loadtests.arrivals.load import Load, RateProfile
    from tpuserve_loadtests.golden import form
    from tpuserve_loadtests.golden.answers import AnswerChecks
    from tpuserve_loadtests.judgement.run import judge_generator
    from tpuserve_loadtests.requests.workload import Line, Workload
    from tpuserve_loadtests.traffic.engine import Engine
    from tpuserve_loadtests.traffic.target import Target

    protocol: Protocol = "grpc" if sys.argv[1] == "grpc" else "rest"
    port, seconds, users, rate = map(int, sys.argv[2:6])
    ca = sys.argv[6] if len(sys.argv) > 6 else None
    spec = ModelSpec(MODEL_NAME)
    sent = Exchange(GRPC_PATH, grpc_answer()) if protocol == "grpc" else Exchange(REST_PATH, rest_answer())
    shape = (None, *values().shape[1:])
    specs = {name: TensorSpec(name, values().dtype, shape) for name in (mlp_model.INPUT, mlp_model.OUTPUT)}
    signature = Signature("serving_default", {"x": specs[mlp_model.INPUT]}, {"y": specs[mlp_model.OUTPUT]})
    line = Line(protocol, protocol, spec, signature, (sent,), (1,), (golden_answer(),))
    if os.environ.get("LOADGEN_CHECKS") == "off":
        AnswerChecks.check = lambda *_: None  # type: ignore[method-assign]  # the reference of this benchmark
    if os.environ.get("LOADGEN_CHECKS") == "unknown":
        form.MOST_KNOWN = 0  # type: ignore[misc]
    workload = Workload((line,))
    scheme = ("grpcs" if ca else "grpc") if protocol == "grpc" else ("https" if ca else "http")
    address = f"{scheme}://127.0.0.1:{port}"
    profile = RateProfile.parse(str(rate), seconds) if rate else None
    load = Load(seconds, WARM_UP_S, users=users, profile=profile)
    with Engine(Target(workload, {protocol: address}, 30.0, access=Access(Tls(ca)))) as engine:
        measured = engine.run(load, lambda elapsed_s, counts: "")
    verdict = judge_generator(measured)
    requests = measured.total.requests
    figures = {
        "requests": requests,
        "failures": measured.total.failures,
        "seconds": measured.span_s,
        # The engine reports cores of the whole run. The warm-up has the same load as the rest.
        "cpu_s": measured.cores[0] * measured.span_s,
        "lag_p99_ms": verdict.lag_p99_ms,
        "limits": verdict.limits,
    }
    print("RESULT", json.dumps(figures))


if __name__ == "__main__":
    main()
