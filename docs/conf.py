"""The site: `make docs` executes the tutorials and builds everything, `make site` only builds."""

import os
import re
import sys
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import gallery  # noqa: E402
import numpy as np  # noqa: E402
import public  # noqa: E402
from docutils import nodes  # noqa: E402
from PIL import Image  # noqa: E402

import gpflow_cool  # noqa: E402

project = "gpflow_cool"
author = "The gpflow_cool developers"
copyright = author
version = release = gpflow_cool.__version__

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.mathjax",
    "sphinx-mathjax-offline",
    "sphinx_design",
    "sphinx_copybutton",
]
exclude_patterns = ["_build"]
root_doc = "index"

# Docstrings: a name in single backticks is looked up, and set as code if there is no such page.
default_role = "py:obj"
autodoc_member_order = "bysource"
autodoc_typehints = "none"
autodoc_class_signature = "mixed"
python_maximum_signature_line_length = 80
toc_object_entries_show_parents = "hide"

# The notebooks come executed, from `make docs` or out of tutorials/.
nb_execution_mode = "off"
nb_merge_streams = True
myst_enable_extensions = ["amsmath", "colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True

html_theme = "pydata_sphinx_theme"
html_title = f"gpflow_cool {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sourcelink = False
html_context = {"default_mode": "auto"}
NO_SECTIONS = "index install start faq changelog cite contributing search genindex".split()
html_sidebars = {page: [] for page in NO_SECTIONS}
html_theme_options = {
    "logo": {"text": "gpflow_cool"},
    "header_links_before_dropdown": 6,
    "navbar_align": "left",
    "secondary_sidebar_items": ["page-toc"],
    "show_prev_next": True,
    "footer_start": ["copyright"],
    "footer_end": ["theme-version"],
    "navigation_with_keys": False,
    "pygments_light_style": "a11y-high-contrast-light",
}


def in_the_site(app, docname, source):
    """Pages and tutorials link to each other as their files lie in the repository."""
    source[0] = re.sub(r"\.\./tutorials/(?=\d)", "tutorials/", source[0]).replace("../docs/", "../")
    if docname == "tutorials/index":
        source[0] = source[0].replace("CARDS", gallery.cards(HERE / "tutorials"))


def included_in_the_site(app, relative_path, parent_docname, content):
    """CHANGELOG.md and CONTRIBUTING.md link to pages from outside of docs/."""
    content[0] = content[0].replace("](docs/", "](")


def tell_shapes_in_a_line(app, what, name, obj, options, lines):
    """`check_shapes` writes a list for each argument: its shape goes beside its name instead."""
    shape = r"\n +\* \*\*\w+\*\* has shape (\[.*\])\.(?!\n +\* )(?:\n\n(?= +[^ :]))?"
    field = re.compile(r"^( *:(?:param \w+|returns):)" + shape, flags=re.MULTILINE)
    text = field.sub(lambda m: f"{m[1]} {m[2].replace('*', '')}. ", "\n".join(lines))
    lines[:] = text.split("\n")


def mark_wide_pictures(app, doctree, docname):
    """Pictures that would be shown with tiny letters get room, and scroll: see site.css."""
    for image in doctree.findall(nodes.image):
        path = HERE / image["uri"]
        if path.suffix == ".png" and "sd-card-img-top" not in image["classes"]:
            with Image.open(path) as picture:  # figures know their size, screenshots do not
                inches = picture.width / picture.info.get("dpi", [np.inf])[0]
            name = "widest" if inches > 16 else "wider" if inches > 9.5 else "wide"
            if inches > 7.5:
                image["classes"].append(name)
                image.parent["classes"].append("scrolls")


def setup(app):
    app.connect("builder-inited", lambda app: public.write_pages(HERE / "api"))
    app.connect("source-read", in_the_site)
    app.connect("include-read", included_in_the_site)
    app.connect("autodoc-process-docstring", tell_shapes_in_a_line)
    app.connect("doctree-resolved", mark_wide_pictures)
