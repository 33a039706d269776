"""Golden answers in a version directory: the requests in its warm-up file that include responses.

`tpuserve export` records both. So does a request log that an operator installs as a warm-up file.
"""

from dataclasses import replace
from pathlib import Path
from typing import Final

from tpuserve_loadtests.recording.recording import BadRecording, Recording

# Path within a SavedModel (saved_model_warmup_util.h of TensorFlow Serving).
WARMUP_FILE: Final = Path("assets.extra/tf_serving_warmup_requests")


def read_golden_version(version: Path) -> Recording:
    """Return the requests with responses. The directory determines their model, whatever name they contain.

    Raises BadRecording with a remedy.
    """
    path = version / WARMUP_FILE
    if not path.is_file():
        raise BadRecording(f"{version}: there are no recorded requests in it ({WARMUP_FILE}): {_instead(version)}")
    recording = Recording.read([path], with_answers=True)
    answered = tuple(replace(logged, model="") for logged in recording.logged if logged.answer)
    if not answered:
        raise BadRecording(
            f"{version}: its {len(recording.logged)} recorded requests have no answers beside them. Have them answered "
            f"before the load, by the server itself: --golden record --recorded {path} --users 32"
        )
    left_out = len(recording.logged) - len(answered)
    without = (f"{version}: {left_out:,} recorded requests without an answer are not sent",) if left_out else ()
    return Recording(str(version), answered, (*recording.notes, *without))


def _instead(folder: Path) -> str:
    versions = sorted((each.name for each in folder.iterdir() if each.name.isdigit()), key=int)
    if versions:
        return f"give one of its versions, such as {folder / versions[-1]}"
    return "give a version directory that has them, such as /models/digits/8, or --golden record"
