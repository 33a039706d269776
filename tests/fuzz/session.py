"""One process that fuzzes one target with Atheris: `python -m tests.fuzz.session NAME SECONDS KEPT FINDINGS COUNTS`.

KEPT is the folder of the inputs that reached new branches, FINDINGS the folder of inputs that broke a rule, and COUNTS
the file of the counts. A finding ends the process with a status other than 0, and Atheris prints its traceback.
"""

import sys
import tempfile
from pathlib import Path

import atheris

from tests.fuzz.memory_limit import MemoryLimit
from tests.fuzz.shared_counts import SharedCounts
from tests.fuzz.target import PACKAGES, Target
from tests.fuzz.targets import CORPUS, load

# Of one input, in seconds, and of the process in MiB: TensorFlow takes most of it.
_INPUT_TIMEOUT_S = 10
_PROCESS_MB = 3072


def main(name: str, seconds: str, kept: str, findings: str, counts: str) -> None:
    """Fuzz until the time is over. Atheris ends the process, and no code of this process runs then."""
    with atheris.instrument_imports(include=list(PACKAGES), enable_loader_override=False):
        target = load(name)
    limited = MemoryLimit(target.run, SharedCounts.create(Path(counts)))
    options = [
        f"-max_total_time={seconds}",
        f"-max_len={target.max_bytes}",
        f"-timeout={_INPUT_TIMEOUT_S}",
        f"-rss_limit_mb={_PROCESS_MB}",
        f"-artifact_prefix={findings}/",
        "-print_final_stats=1",
        *_dictionary(target),
    ]
    atheris.Setup([sys.argv[0], *options, kept, str(CORPUS / name)], limited)
    atheris.Fuzz()


def _dictionary(target: Target) -> list[str]:
    if not target.words:
        return []
    lines = ["".join(f"\\x{byte:02x}" for byte in word) for word in target.words]
    file = Path(tempfile.mkdtemp(prefix="tpuserve-fuzz-")) / "words.dict"
    file.write_text("".join(f'"{line}"\n' for line in lines), encoding="ascii")
    return [f"-dict={file}"]


if __name__ == "__main__":
    main(*sys.argv[1:])
