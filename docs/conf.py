"""Sphinx configuration of the site: `python -m sphinx -W --keep-going docs site`."""

import sys
from pathlib import Path

from gradhomog import __version__

sys.path.insert(0, str(Path(__file__).parent))

project = "gradhomog"
author = "The gradhomog authors"
copyright = "the gradhomog authors"
version = release = __version__

extensions = [
    "myst_nb",  # Markdown pages, and notebooks in Markdown, which are executed
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",  # `Args:`, `Raises:`
    "sphinxarg.ext",  # pages of the command line from its parsers
    "sphinx_copybutton",
    "sphinx_design",  # grids and cards
    "sphinx-mathjax-offline",  # MathJax within the site: no network is needed to read it
    "_site",
]
exclude_patterns = ["examples/**/README.md", "_site"]

smartquotes = False  # help texts contain commands to copy
default_role = "code"  # help texts have code in single backticks

html_theme = "furo"
html_title = f"gradhomog {release}"
html_static_path = ["_static", "../gradhomog/experiments/report/templates/sort.js"]
html_js_files = [("sort.js", {"defer": "defer"})]  # tables of the class "sortable", as in reports
html_favicon = "_static/icon.svg"
html_css_files = ["site.css"]
html_theme_options = {"source_repository": "", "navigation_with_keys": True}
html_copy_source = False
html_show_sourcelink = False

myst_enable_extensions = ["dollarmath", "amsmath", "colon_fence", "deflist", "attrs_inline", "attrs_block"]
myst_heading_anchors = 4
myst_html_meta = {
    "description lang=en": "Gradient homogenization for PyTorch: plugins that make the gradients of several tasks "
    "agree, for multi-task learning and meta-learning on TorchOpt."
}
nb_execution_mode = "cache"
nb_execution_raise_on_error = True
nb_execution_timeout = 300

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
maximum_signature_line_length = 100  # longer signatures have a line for each parameter
autodoc_default_options = {"members": True, "undoc-members": False}
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True  # attributes of a docstring are a list, not separate objects
napoleon_use_rtype = False  # `Returns:` is a sentence, which may contain a colon
suppress_warnings = ["myst.domains"]  # sphinx-argparse adds a domain that does not resolve links of other kinds
