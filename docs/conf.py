"""The site: `make docs`.

The source folder is the repository's root, so that links between the pages lead to the same
places here and on GitHub.
"""

from __future__ import annotations

import configparser
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests/support")]

from gpus import count_gpus  # noqa: E402

import bridge  # noqa: E402

if not count_gpus():  # autodoc imports both libraries, which want a CUDA driver
    import hostcuda

    hostcuda.install()

project = "bridge"
version = release = bridge.__version__
copyright = author = "The bridge authors"

extensions = ["sphinx.ext.autodoc", "sphinx.ext.napoleon", "myst_nb"]
root_doc = "docs/index"
include_patterns = ["*.md", "docs/**", "benchmarks/**", "notebooks/**", "hostcuda/*.md"]
exclude_patterns = ["**/.*"]

smartquotes_action = "D"  # dashes, but no other quotes: types are code, {"nvrtc", "nvcc"}

nb_execution_mode = "off"  # the notebooks keep the outputs of the GPU that they ran on
myst_heading_anchors = 6  # as on GitHub

# Types are in the docstrings, in words; of a signature they would make five lines.
autodoc_typehints = "none"
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
napoleon_google_docstring = False
napoleon_use_param = False
napoleon_use_rtype = False

# In docstrings `as_cupy` is a name of ours, which becomes a link, and `array` an argument.
default_role = "py:obj"
nitpick_ignore_regex = [("py:obj", r"(?!bridge\.).*"), ("py:class|py:exc", r"pycuda\..*")]

html_theme = "furo"
metadata = configparser.ConfigParser()
metadata.read(ROOT / "setup.cfg")
if "url" in metadata["metadata"]:
    html_theme_options = {"source_repository": metadata["metadata"]["url"], "source_branch": "main"}
html_title = f"bridge {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_extra_path = ["_root"]  # index.html leads to the root page
html_copy_source = html_show_sourcelink = False


def setup(app):
    app.connect("autodoc-process-docstring", separate_notes, priority=400)  # before napoleon
    app.connect("doctree-read", leave_out_of_the_sidebar)


def leave_out_of_the_sidebar(app, doctree):
    """Let what was measured, and pages of folders, be reached by links alone."""
    if app.env.docname.startswith(("benchmarks/", "tests/")):
        app.env.metadata[app.env.docname]["orphan"] = True


def separate_notes(app, what, name, value, options, lines):
    """Make a paragraph of each of *Ownership:*, *Ordering:* and *Cost:*."""
    text = re.sub(r"\s+(?=\*(Ownership|Ordering|Cost):\*)", "\n\n", "\n".join(lines))
    lines[:] = text.splitlines()
