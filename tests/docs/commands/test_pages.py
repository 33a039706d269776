"""The commands of the front page, the tutorials and the how-tos, run literally in environments of the built wheels.

Each page runs in an empty directory, or in one with the files of the page that it continues.
"""

import pytest

from tests.docs.commands.library import FIRST_PAGE, MARKS, Library, read_pages

RUN = [
    name
    for name, page in read_pages().items()
    if name != FIRST_PAGE and not page.not_run and any(block.runs for block in page.blocks)
]

pytestmark = MARKS


@pytest.mark.parametrize("name", RUN)
def test_every_command_of_a_page_works_as_printed(name: str, library: Library) -> None:
    ran = library.run(name)
    print(ran.printed)
    assert ran.succeeded, ran.printed
