"""The commands of README.md, run literally in an environment that has only the built wheels."""

from tests.docs.commands.library import FIRST_PAGE, MARKS, Library

pytestmark = MARKS


def test_every_command_works_as_printed(library: Library) -> None:
    ran = library.run(FIRST_PAGE)
    assert ran.succeeded, ran.printed
