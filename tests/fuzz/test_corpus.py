"""Every corpus entry through its target: seeds, and inputs that once broke a rule."""

import pytest

from tests.fuzz.targets import CORPUS, PARSERS, entries, load


@pytest.mark.parametrize("name", PARSERS)
def test_every_corpus_entry_follows_the_rules_of_its_target(name: str) -> None:
    run = load(name).run
    accepted = []
    for path in entries(name):
        try:
            accepted.append(run(path.read_bytes()))
        except Exception as error:
            error.add_note(f"Input: {path.relative_to(CORPUS)}")
            raise
    # A target that accepts everything, or nothing, checks too little.
    assert {True, False} <= set(accepted)


def test_every_corpus_folder_has_a_target() -> None:
    assert {path.name for path in CORPUS.iterdir()} == set(PARSERS)


@pytest.mark.parametrize("name", PARSERS)
def test_targets_run_any_bytes(name: str) -> None:
    run = load(name).run
    for data in (b"", b"\0", b"\xff" * 3, b"{", b"\n\n", bytes(64)):
        run(data)
