"""Golden answers in a version directory: the requests in its warm-up file that include responses.

`tpuserve export` records both. So does a request log that an operator installs as a warm-up file.
"""

from dataclasses import replace
from pathlib import Path
from typing import Final

from tpuserve_formats.counted import counted
from tpuserve_loadtests.requests.recording import BadRecording, Recording

# Path within a SavedModel (saved_model_warmup_util.h of TensorFlow Serving).
WARMUP_FILE: Final = Path("assets.extra/tf_serving_warmup_requests")


def read_golden_version(version: Path) -> Recording:
    """Return the requests with responses. The directory determines their model, whatever name they contain.

    Raises BadRecording with a remedy.
    """
    path = version / WARMUP_FILE
    if not path.is_file():
        raise BadRecording(f"{version} contains no recorded requests ({WARMUP_FILE}). {_instead(version)}")
    recording = Recording.read([path], with_answers=True)
    with_response = tuple(replace(logged, model="") for logged in recording.logged if logged.answer)
    if not with_response:
        raise BadRecording(
            f"{version}: The {len(recording.logged)} recorded requests have no responses. Record responses of the "
            f"server before the load, with --golden record --recorded {path} --users 32"
        )
    skipped = len(recording.logged) - len(with_response)
    without = (f"{version}: skipped {counted(skipped, 'recorded request')} without a response",) if skipped else ()
    return Recording(str(version), with_response, (*recording.notes, *without))


def _instead(folder: Path) -> str:
    versions = sorted((each.name for each in folder.iterdir() if each.name.isdigit()), key=int)
    if versions:
        return f"Set one of its versions, such as {folder / versions[-1]}."
    return "Set a version directory with recorded requests, such as /models/digits/8, or --golden record."
