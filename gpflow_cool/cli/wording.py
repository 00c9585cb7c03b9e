"""Text for the command line: options as they are typed, and nothing that steers a terminal."""

import re
import unicodedata

AS_OPTIONS = (
    (r"\brestarts=(\d+)(?=,? (?:or|may) )", r"--restarts \1"),
    (r"\(force=True; on the command line --force\)", "(--force)"),
    (r"\bard=True does not go with kernel='auto'", "--ard does not go with --kernel auto"),
    (r"\buse ard='shrunk' \(leave --ard out\)", "leave --ard out"),
    (r" \(in Python missing_inputs=\"fill\"\)", ""),
    (r"\bfolds=(\d+)(?= is not possible)", r"--folds \1"),
)
"""
What messages say to users of Python, and what stands for it here. Not every NAME=VALUE is meant:
an input for one category of a column is called so, too.
"""


def in_options(text: str) -> str:
    """
    A message with the options of the command line in place of those of Python.

    >>> in_options("another kernel or restarts=5 may show more")
    'another kernel or --restarts 5 may show more'
    """
    for pattern, replacement in AS_OPTIONS:
        text = re.sub(pattern, replacement, text)
    return text


def printable(text: str) -> str:
    r"""
    Text for a terminal: characters that could steer it, as in names of columns, are spelt out.

    >>> print(printable("a\x1b[2Jb\u202ec"), printable("grün\n"), end="")
    a\x1b[2Jb\u202ec grün
    """
    return "".join(
        c if c == "\n" or unicodedata.category(c) not in ("Cc", "Cf") else repr(c)[1:-1]
        for c in text
    )
