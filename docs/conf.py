"""Sphinx's configuration: `make docs` builds docs/ into out/docs, offline."""

import sys
import tomllib
from pathlib import Path

import shmring

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "_ext"))

project = "shmring"
author = "The shmring authors"
copyright = author
version = release = shmring.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx_click",
    "sphinx_copybutton",
    "sphinx_design",
    "as_typed",
    "docstrings",
    "figures",
    "header",
    "licences",
    "pictures",
    "public_names",
]
exclude_patterns = ["_ext", "_pictures", "_templates"]
root_doc = "index"
default_role = "code"
smartquotes = False  # they make dashes of the `--` of an option: copied lines fail

myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
python_maximum_signature_line_length = 88
python_use_unqualified_type_names = True
# Every name that a page links to must exist. Types in signatures are others' and private ones, and
# no other project's index can be asked offline.
nitpicky = True
nitpick_ignore_regex = [
    (r"py:(class|obj|data|exc)", r".*"),
    (r"c:identifier", r".*"),
]

# Each version has a folder of its own: scripts/site.py.
urls = tomllib.loads((HERE.parent / "pyproject.toml").read_text())["project"]["urls"]
html_baseurl = f"{urls['Documentation']}/{release}/"
templates_path = ["_templates"]
html_js_files = [("versions.js", {"defer": "defer"})]

html_theme = "furo"
html_title = f"shmring {release}"
html_static_path = ["_static"]
html_css_files = ["shmring.css"]
html_copy_source = False
html_show_sphinx = False
html_extra_path = ["../out/javadoc"]  # becomes java/
html_theme_options = {
    "light_css_variables": {
        "color-brand-primary": "#1f5fa8",
        "color-brand-content": "#1f5fa8",
    },
    "dark_css_variables": {
        "color-brand-primary": "#7fb4f0",
        "color-brand-content": "#7fb4f0",
    },
}
pygments_style = "friendly"
pygments_dark_style = "nord"

copybutton_prompt_text = "$ "
copybutton_only_copy_prompt_lines = True
