"""JUnit's XML, as CI systems read it: what was judged, case by case."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from xml.etree import ElementTree

# Cases that several reports have. CI systems follow a case by its name: it has no figures in it, and stays.
ANSWERED: Final = "requests are answered"
GENERATOR: Final = "the load generator is not the limit"
# What XML 1.0 cannot hold, escaped or not; a server's messages may have it.
_NO_XML: Final = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@dataclass(frozen=True, slots=True)
class Case:
    """Failed where there is a `problem`, else not judged where it is `skipped`, which says why, else passed.

    `seconds`: how long it took, where that is known.
    """

    name: str
    problem: str = ""
    skipped: str = ""
    seconds: float | None = None


def junit_xml(kind: str, subject: str, cases: Sequence[Case], told: str = "") -> str:
    """`kind`: which command; `subject`: what was tested. `told`: what it came to, in words."""
    suite = ElementTree.Element(
        "testsuite",
        {
            "name": _text(f"{kind} {subject}"),
            "tests": str(len(cases)),
            "failures": str(sum(bool(case.problem) for case in cases)),
            "skipped": str(sum(bool(case.skipped and not case.problem) for case in cases)),
        },
    )
    for case in cases:
        suite.append(_element(kind.replace(" ", "."), case))
    if told:
        ElementTree.SubElement(suite, "system-out").text = _text(told)
    ElementTree.indent(suite)
    return ElementTree.tostring(suite, "unicode", xml_declaration=True) + "\n"


def _element(classname: str, case: Case) -> ElementTree.Element:
    took = {} if case.seconds is None else {"time": f"{case.seconds:.3f}"}
    element = ElementTree.Element("testcase", {"classname": classname, "name": _text(case.name), **took})
    if case.problem:
        problem = _text(case.problem)
        ElementTree.SubElement(element, "failure", {"message": problem.splitlines()[0]}).text = problem
    elif case.skipped:
        ElementTree.SubElement(element, "skipped", {"message": _text(case.skipped)})
    return element


def _text(text: str) -> str:
    return _NO_XML.sub("\ufffd", text)
