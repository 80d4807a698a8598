"""The site: `make docs` builds it from the Markdown of this folder and from docstrings."""

import os
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE / "_ext"), str(HERE.parent)]

from oodbench.version import __version__ as release  # noqa: E402

project = "oodbench"
copyright = "The oodbench authors"
extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "contents",
    "docstrings",
    "notebooks",
    "reference",
]
root_doc = "README"
exclude_patterns = ["_build"]
myst_heading_anchors = 6
myst_url_schemes = {"http": None, "https": None, "mailto": None, "page": "{{path}}"}
# tutorials are notebooks; each is executed in a folder of its own, and again when its code changes
nb_execution_mode = "cache"
nb_execution_cache_path = str(HERE / "_build" / "notebooks")
nb_execution_in_temp = True
nb_execution_raise_on_error = True
nb_execution_timeout = 600
nb_merge_streams = True
os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
os.environ |= {"PYTHONPATH": str(HERE.parent), "COLUMNS": "88", "OMP_NUM_THREADS": "1"}

highlight_language = "text"
templates_path: list[str] = []
suppress_warnings = ["config.cache", "ref.python"]  # names of types that two modules have

autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_default_options = {"members": True, "show-inheritance": True, "no-value": True}
python_use_unqualified_type_names = True
toc_object_entries = False

html_theme = "pydata_sphinx_theme"
html_title = f"oodbench {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sourcelink = False
html_sidebars = {"README": []}
html_theme_options = {
    "logo": {"text": f"oodbench {release}"},
    "github_url": "https://github.com/oodbench/oodbench",
    "header_links_before_dropdown": 5,
    "show_prev_next": False,
    "footer_start": ["copyright"],
    "footer_end": ["sphinx-version"],
}
if versions := os.environ.get("OODBENCH_DOCS_VERSIONS"):  # the address of versions.json: docs.yml
    html_theme_options["switcher"] = {
        "json_url": versions,
        "version_match": os.environ.get("VERSION", release),
    }
    html_theme_options["navbar_end"] = ["version-switcher", "theme-switcher", "navbar-icon-links"]
    html_theme_options["check_switcher"] = False
