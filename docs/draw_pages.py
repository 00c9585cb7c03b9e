"""
Draw the pictures of the guide: `python docs/draw_pages.py`, or with names of pages after it.

The code on a page draws what the page shows. It is run in docs/images/guide, and saves there.
"""

import os
import re
import sys
from pathlib import Path

DOCS = Path(__file__).parent
PICTURES = DOCS / "images" / "guide"
BLOCK = re.compile(r"^```python\n(.*?)^```$", flags=re.DOTALL | re.MULTILINE)


def code_of(page: Path) -> str:
    """The Python blocks of a page as one program: later blocks use names of earlier ones."""
    return "\n".join(BLOCK.findall(page.read_text()))


def pictures_of(page: Path) -> list[str]:
    """Names of the pictures that the page's own code draws."""
    return re.findall(r"\]\((?:\.\./)?images/guide/([^)]+)\)", page.read_text())


def main(names: list[str]) -> None:
    PICTURES.mkdir(exist_ok=True)
    os.chdir(PICTURES)
    for page in sorted((DOCS / "guide").resolve().glob("*.md")):
        if pictures_of(page) and (not names or page.stem in names):
            exec(compile(code_of(page), str(page), "exec"), {})
            print(page.stem, *pictures_of(page))


if __name__ == "__main__":
    os.environ.setdefault("MPLBACKEND", "Agg")
    main(sys.argv[1:])
