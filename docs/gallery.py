"""Cards for the executed tutorials: title, first sentence, and a picture out of the notebook."""

import base64
import json
import re
from pathlib import Path

CARD = """:::{{grid-item-card}} {title}
:link: {stem}
:link-type: doc
:img-top: pictures/{stem}.png
{sentence}
:::
"""


def text_of(notebook: dict) -> tuple[str, str]:
    """The title, and the first sentence after it."""
    lines = "".join(notebook["cells"][0]["source"]).split("\n")
    title = lines[0].removeprefix("# ")
    paragraph = " ".join(lines[1:]).strip()
    return title, re.split(r"(?<=[.?])\s", paragraph, maxsplit=1)[0]


def picture_of(notebook: dict) -> bytes:
    """The first picture that is not small, or else the largest."""
    outputs = [out for cell in notebook["cells"] for out in cell.get("outputs", ())]
    found = [out["data"]["image/png"] for out in outputs if "image/png" in out.get("data", {})]
    pictures = [base64.b64decode(picture) for picture in found]
    return next((each for each in pictures if len(each) > 25_000), max(pictures, key=len))


def cards(folder: Path) -> str:
    """A grid of cards, one per notebook of the folder; their pictures are written beside them."""
    (folder / "pictures").mkdir(exist_ok=True)
    text = "::::{grid} 1 2 3 3\n:gutter: 3\n\n"
    for path in sorted(folder.glob("*.ipynb")):
        notebook = json.loads(path.read_text())
        title, sentence = text_of(notebook)
        (folder / "pictures" / f"{path.stem}.png").write_bytes(picture_of(notebook))
        text += CARD.format(title=title, stem=path.stem, sentence=sentence) + "\n"
    return text + "::::\n"
