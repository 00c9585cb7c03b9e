"""Version, changelog and citation agree."""

import re
from pathlib import Path

import gpflow_cool

ROOT = Path(__file__).parents[1]


def test_citation_has_the_version():
    assert f"\nversion: {gpflow_cool.__version__}\n" in (ROOT / "CITATION.cff").read_text()


def test_changelog_has_a_section_of_the_version():
    headings = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)
    released = [heading for heading in headings if heading != "Unreleased"]
    assert released[0] == gpflow_cool.__version__
