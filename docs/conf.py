"""Sphinx's configuration of the documentation site: `make docs`.

The repository's root is the source directory, so that links between docs/, the READMEs and the changelog lead to the
same places on the site as in a checkout.
"""

import os
import sys
from importlib import metadata
from pathlib import Path

from docutils.utils import urischemes

# The extensions in docs/sphinx.
sys.path.append(str(Path(__file__).resolve().parents[1]))

# The page of the Python API imports a class of Locust users, whose import would patch the sockets of this process.
os.environ["LOCUST_SKIP_MONKEY_PATCH"] = "1"

project = "tpuserve"
release = metadata.version("tpuserve-server")
html_title = f"tpuserve {release}"

root_doc = "docs/index"
include_patterns = [
    "docs/**",
    "CHANGELOG.md",
    "SECURITY.md",
    "benchmarks/README.md",
    "clients/python/README.md",
    "deploy/README.md",
    "deploy/tpuserve/README.md",
    "deploy/vertex/README.md",
    "examples/README.md",
    "examples/ensemble/README.md",
    "exporter/README.md",
    "formats/README.md",
    "loadtests/README.md",
    "server/README.md",
]
# Pruned before the scan: environments and build outputs hold other projects' documents.
exclude_patterns = ["**/.*", ".*", "build", "**/node_modules", "**/__pycache__"]

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_click",
    "sphinx_copybutton",
    "docs.sphinx.descriptions",
    "docs.sphinx.diagrams",
    "docs.sphinx.help_texts",
    "docs.sphinx.pictures",
]

# GitHub's anchors, so that a link to a heading works in both places.
myst_heading_anchors = 4
myst_enable_extensions = ["deflist", "fieldlist"]
# GitHub draws these blocks; here they are a directive.
myst_fence_as_directive = ["mermaid"]

autodoc_typehints = "description"
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
napoleon_google_docstring = True

# The help of `tpuserve rollout` has addresses such as dns:NAME:PORT, which are no links.
del urischemes.schemes["dns"]

# Docstrings quote code with single backticks.
default_role = "code"

# Prompts and output stay out of what the button copies.
copybutton_prompt_text = "$ "
copybutton_only_copy_prompt_lines = True

html_theme = "furo"
html_extra_path = ["_site"]
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_favicon = "_static/favicon.svg"
html_search_scorer = str(Path(__file__).with_name("sphinx") / "scorer.js")
html_theme_options = {"top_of_page_buttons": []}
html_copy_source = False
html_show_copyright = False
