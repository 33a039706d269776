"""JUnit XML for CI systems: a test case for each verdict."""

import re
from typing import Final
from xml.etree import ElementTree

from tpuserve_loadtests.rendering.report import Case, Report

# Characters that XML 1.0 cannot represent, even escaped. A server's messages may contain them.
_NO_XML: Final = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def junit_xml(report: Report) -> str:
    """Render a suite named after the report's kind and subject, with its statement as the output."""
    cases = report.cases
    suite = ElementTree.Element(
        "testsuite",
        {
            "name": _text(f"{report.kind} {report.subject}"),
            "tests": str(len(cases)),
            "failures": str(sum(bool(case.problem) for case in cases)),
            "skipped": str(sum(bool(case.skipped and not case.problem) for case in cases)),
        },
    )
    for case in cases:
        suite.append(_element(report.kind.replace(" ", "."), case))
    if report.statement:
        ElementTree.SubElement(suite, "system-out").text = _text(report.statement)
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
