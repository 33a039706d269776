"""Tests for the records of forms: what they keep within their bounds, over processes."""

from pathlib import Path

from tpuserve_server.core.system.form_records import MOST_KNOWN, FormRecords, shortened, version_key

A, B = version_key(b"a"), version_key(b"b")


def test_next_process_finds_running_forms_and_takes_over_the_completed(tmp_path: Path) -> None:
    records, _ = FormRecords.open(tmp_path)
    records.learn(A, "learned")
    records.end(records.begin(A, "completed"), A, "completed", completed=True)
    records.end(records.begin(A, "failed"), A, "failed", completed=False)
    records.begin(B, "running")
    records.begin(B, "running")
    for found in ([(B, "running")], []):
        records, running = FormRecords.open(tmp_path)
        assert running == found
        assert [records.knows(A, form) for form in ("learned", "completed", "failed")] == [True, True, False]
        assert not records.knows(B, "learned")


def test_form_that_two_threads_complete_takes_one_record(tmp_path: Path) -> None:
    records, _ = FormRecords.open(tmp_path)
    for _ in range(3):
        first, second = records.begin(A, "same"), records.begin(A, "same")
        for record in (first, second):
            records.end(record, A, "same", completed=True)
    # Only the first kept its record.
    assert records.begin(A, "other") == second


def test_clients_cannot_fill_the_records(tmp_path: Path) -> None:
    records, _ = FormRecords.open(tmp_path)
    keys = [version_key(bytes([number])) for number in range(20)]
    for key in keys:
        records.begin_load(key)
        for form in range(MOST_KNOWN + 10):
            records.learn(key, str(form))
    assert not records.knows(keys[-1], str(MOST_KNOWN))
    # The version that began to load first has lost its forms, and runs have records.
    assert [records.knows(key, "0") for key in keys] == [number >= 5 for number in range(20)]
    assert records.begin(keys[0], "new") >= 0


def test_version_that_loads_again_keeps_its_forms_longer(tmp_path: Path) -> None:
    records, _ = FormRecords.open(tmp_path)
    keys = [version_key(bytes([number])) for number in range(16)]
    for key in (*keys[:2], keys[0], *keys[2:]):
        records.begin_load(key)
        for form in range(MOST_KNOWN):
            records.learn(key, str(form))
    assert (records.knows(keys[0], "0"), records.knows(keys[1], "0")) == (True, False)


def test_long_forms_differ_in_their_hash() -> None:
    one, other = shortened("é" * 500), shortened("é" * 501)
    assert one != other
    assert max(len(one.encode()), len(other.encode())) <= 239
    assert shortened(one) == one
