"""Tests of the term provenance: what a comparison says of origins, and how the manifest counts them."""

from tpuserve_exporter.terms.provenance import INITIAL, TRAINED, Origin, OriginKind, origins_to_json
from tpuserve_exporter.terms.restore_report import ArraySpec, Entry, Fate, RestoreReport, allow
from tpuserve_exporter.version.manifest import describe_origins

SPEC = ArraySpec("float32", (2,))
EMA = Origin(OriginKind.AVERAGE, "ema", stored="ema/kernel")


def test_every_variable_of_the_model_has_an_origin_and_no_other_has() -> None:
    entries = [
        Entry.compare("kernel", SPEC, SPEC, EMA),
        Entry.compare("bias", SPEC, SPEC),
        Entry.compare("head", SPEC, None),
        Entry("old", Fate.UNUSED, checkpoint=str(SPEC)),
    ]
    report = RestoreReport(allow(entries, ("head",), ("old",)))
    assert report.origins == {"kernel": EMA, "bias": TRAINED, "head": INITIAL}
    assert report.summary() == "2 matched, 1 missing, 1 unused, 1 of them moving averages"


def test_manifest_counts_the_values_of_each_origin() -> None:
    table = Origin(OriginKind.VOCABULARY, "text", "3 terms")
    origins = {"a": EMA, "b": Origin(OriginKind.AVERAGE, "ema", stored="ema/b"), "c": table}
    described = describe_origins(origins)
    assert [one.model_dump() for one in described] == [
        {"kind": "average", "part": "ema", "count": 2},
        {"kind": "vocabulary", "part": "text", "detail": "3 terms", "count": 1},
    ]
    assert "; ".join(map(str, described)) == "2 moving averages, from ema; 1 vocabulary, from text (3 terms)"


def test_report_lists_every_value() -> None:
    assert origins_to_json({"a": EMA}) == [
        {"name": "a", "kind": "average", "part": "ema", "detail": "", "stored": "ema/kernel"}
    ]
