"""Tests that the first command of each page is that of docs/install.toml."""

from pathlib import Path

import pytest

from tests.deploy.dockerfile import ROOT
from tests.docs.install_blocks import is_on_index, requirements, write_blocks
from tests.docs.test_links import markdown_files

PAGES = {path: text for path in markdown_files() if requirements(text := (ROOT / path).read_text(encoding="utf-8"))}
PAGE = "# Page\n\n<!-- install: tpuserve[jax] optax -->\nold\n<!-- end of install -->\n\nEnd\n"


@pytest.mark.parametrize("path", PAGES, ids=str)
def test_the_blocks_of_a_page_are_those_of_the_switch(path: Path) -> None:
    assert write_blocks(path, PAGES[path], on_index=is_on_index()) == PAGES[path]


def test_the_pages_that_a_user_reads_first_have_a_block() -> None:
    first = {Path("README.md"), Path("docs/how-to/install.md"), Path("docs/tutorials/keras.md")}
    assert first <= PAGES.keys()


def test_a_block_of_a_checkout_installs_with_make() -> None:
    written = write_blocks(Path("docs/tutorials/page.md"), PAGE, on_index=False)
    commands = "make install PACKAGES='tpuserve[jax]'\nsource ~/tpuserve/bin/activate\npip install optax\n"
    assert commands in written
    assert "(../how-to/install.md)" in written
    assert "old" not in written
    assert written.endswith("<!-- end of install -->\n\nEnd\n")


def test_a_block_of_the_index_installs_with_pip() -> None:
    written = write_blocks(Path("page.md"), PAGE, on_index=True)
    assert "\npip install 'tpuserve[jax]' optax\n" in written
    assert "make" not in written
