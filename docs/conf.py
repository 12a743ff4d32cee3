"""How the site is built: `python -m sphinx -W docs build/site`; CASTFIT_DOCS=quick leaves out the slow examples."""

import os
import shutil
import sys
from pathlib import Path

import castfit

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "_extensions"))


project = "castfit"
copyright = "castfit developers"
author = "castfit developers"
version = release = castfit.__version__

extensions = [
    "myst_parser",
    "numpydoc",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx_design",
    "sphinx_gallery.gen_gallery",
    "architecture",
    "command_page",
    "course",
    "executed",
    "links",
    "mathml",
    "outcomes_page",
    "problem_pages",
    "whole_text",
]
myst_enable_extensions = ["amsmath", "colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3
exclude_patterns = ["_build", "_work", "paper"]  # the paper is a journal's, docs/paper/paper.md
templates_path = ["_templates"]
nitpicky = False

autosummary_generate = True
# Where the case of letters does not matter, a function and its class, design and Design, would be one file.
autosummary_filename_map = {
    f"castfit.{name}": f"castfit.{name}-function"
    for name in castfit.__all__
    if name.islower() and name.title() in castfit.__all__
}
autodoc_typehints = "none"  # numpydoc's sections have types, in words and with shapes
numpydoc_show_class_members = False

html_theme = "pydata_sphinx_theme"
html_title = f"castfit {release}"
html_static_path = ["_static"]
html_css_files = ["castfit.css"]
html_show_sourcelink = False
html_context = {"default_mode": "auto"}
html_copy_source = False
html_theme_options = {
    "navbar_align": "left",
    "navbar_end": ["theme-switcher"],
    "footer_start": ["copyright"],
    "footer_end": [],
    "secondary_sidebar_items": ["page-toc"],
    "show_prev_next": False,
    "show_toc_level": 2,
}

# Examples write pictures and reports where they run, so copies of them run, in a folder that git ignores.
WORK = HERE / "_work" / "examples"
for made in (WORK, HERE / "reference" / "generated"):  # of names and examples that are no longer there
    shutil.rmtree(made, ignore_errors=True)
shutil.copytree(HERE.parent / "examples", WORK, ignore=shutil.ignore_patterns("*.png", "__pycache__"))

quick = os.environ.get("CASTFIT_DOCS") == "quick"
sphinx_gallery_conf = {
    "examples_dirs": str(WORK),
    "gallery_dirs": "gallery",
    "filename_pattern": r"$^" if quick else r"/\w+\.py$",
    "within_subsection_order": "gallery.in_order",
    "image_scrapers": ("gallery.castfit_figures",),
    "capture_repr": ("_repr_html_", "__repr__"),
    "ignore_repr_types": r"castfit\.plots\._figure",  # figures are shown once, by the scraper
    "abort_on_example_error": True,
    "only_warn_on_example_error": False,
    "remove_config_comments": True,
    "show_memory": False,
    "download_all_examples": True,
    "write_computation_times": False,
}
