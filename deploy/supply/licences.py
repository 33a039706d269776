"""`python -m deploy.supply.licences`: print the licence of each package in the locks, and fail for one to review.

The licences are those of the installed packages' metadata, so this needs no network.
"""

import re
import sys
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from importlib.metadata import Distribution, PackageMetadata, distributions
from pathlib import Path
from typing import Final

from deploy.image.targets import TARGETS
from deploy.supply.licence_expression import ExpressionError, is_permitted
from deploy.supply.licence_rules import CLASSIFIERS, DEVELOPMENT, DISTRIBUTED, FREE_TEXT, PROPRIETARY, REVIEWED

ROOT: Final = Path(__file__).parents[2]
_PIN: Final = re.compile(r"^([\w.-]+)==", re.MULTILINE)
_DEVELOPMENT_LOCKS: Final = ("bootstrap", "dev")
# Locks of separate environments for development. `make NAME` installs each into .NAME.
_ENVIRONMENTS: Final = ("audit", "compiler", "fuzz", "oip-clients", "ray", "torch")


@dataclass(frozen=True, slots=True)
class Licence:
    """A package of a lock, its licence as an SPDX expression, and why it needs a review, or ""."""

    package: str
    expression: str | None
    complaint: str


def main() -> int:
    """Print a line for each package. Return 1 if one needs a review."""
    found = list(read_licences())
    for licence in found:
        sys.stdout.write(f"{licence.package:36} {licence.expression or 'unknown'}\n")
    complaints = [licence for licence in found if licence.complaint]
    for licence in complaints:
        sys.stderr.write(f"{licence.package}: {licence.complaint}\n")
    for name in _ENVIRONMENTS:
        if not _site_packages(name):
            sys.stdout.write(f"NOT CHECKED: requirements/{name}.lock. Install its packages first: make {name}\n")
    sys.stdout.write(f"{len(found)} packages, {len(complaints)} to review\n")
    return 1 if complaints else 0


def read_licences() -> Iterator[Licence]:
    """Yield the licence of each package in the locks of the images and of the development, by name.

    Includes the packages of the separate environments that are installed.
    """
    distributed = {name for target in TARGETS.values() for lock in target.locks for name in locked(lock)}
    developing = {name for lock in _DEVELOPMENT_LOCKS for name in locked(lock)}
    environments = [name for name in _ENVIRONMENTS if _site_packages(name)]
    developing |= {package for name in environments for package in locked(name)}
    folders = [str(folder) for name in environments for folder in _site_packages(name)]
    # Of a package in several environments, the one of this process counts.
    installed = {canonical(each.metadata["Name"]): each for each in (*distributions(path=folders), *distributions())}
    for name in sorted(distributed | developing):
        expression = find_licence(name, installed.get(name))
        yield Licence(name, expression, judge(name, expression, DISTRIBUTED if name in distributed else DEVELOPMENT))


def locked(lock: str) -> Iterator[str]:
    """Yield the names of the packages in a lock."""
    text = (ROOT / f"requirements/{lock}.lock").read_text(encoding="utf-8")
    return (canonical(name) for name in _PIN.findall(text))


def _site_packages(environment: str) -> list[Path]:
    """Return the folder of packages of a separate environment, or nothing if it is not installed."""
    if not (ROOT / f".{environment}/.installed").exists():
        return []
    return list((ROOT / f".{environment}").glob("lib/python3*/site-packages"))


def find_licence(name: str, installed: Distribution | None) -> str | None:
    """Return the licence of a package as an SPDX expression, or None if nothing says it clearly."""
    if name in PROPRIETARY:
        return PROPRIETARY[name]
    if name in REVIEWED:
        return REVIEWED[name]
    return None if installed is None else _of_metadata(installed.metadata)


def judge(name: str, expression: str | None, allowed: Collection[str]) -> str:
    """Return why a person must look at a licence, or ""."""
    if expression is None:
        return "its metadata names no known licence. Read its licence, and add it to REVIEWED in licence_rules.py"
    if PROPRIETARY.get(name) == expression:
        return ""
    try:
        permitted = is_permitted(expression, allowed)
    except ExpressionError as error:
        return f"{error}. Read its licence, and add it to REVIEWED in licence_rules.py"
    return "" if permitted else f"the licence {expression} is not allowed. Remove the package, or change the rules"


def canonical(name: str) -> str:
    """Return a package's name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _of_metadata(metadata: PackageMetadata) -> str | None:
    fields = metadata.json
    if expression := fields.get("license_expression"):
        return str(expression)
    text = str(fields.get("license", "")).strip()
    classified = [
        CLASSIFIERS.get(classifier.rpartition(" :: ")[2])
        for classifier in fields.get("classifier", ())
        if classifier.startswith("License :: OSI Approved :: ")
    ]
    if text in FREE_TEXT:
        return FREE_TEXT[text]
    if classified:
        # Several classifiers may mean AND or OR, so all must be allowed.
        return None if None in classified else " AND ".join(filter(None, classified))
    # Some packages write an SPDX identifier into the older field.
    return text if re.fullmatch(r"[A-Za-z0-9.+-]+( (AND|OR) [A-Za-z0-9.+-]+)*", text) else None


if __name__ == "__main__":
    sys.exit(main())
