"""The command line, called in this process."""

from click.testing import CliRunner

from gpflow_cool.cli import commands

PLAIN = ("--kernel", "se", "--no-ard")
"""A kernel that nobody has to choose among seven, which would take ten times as long."""


def run(*arguments, **options):
    """A command. One that trains has the plain kernel, if it names none."""
    words = list(map(str, arguments))
    if words[:1] in (["fit"], ["impute"], ["evaluate"]):
        if not {"--kernel", "--kernels", "--ard", "--help"} & set(words):
            words += PLAIN
        elif "--ard" not in words and "--help" not in words:
            words += ["--no-ard"]
    return CliRunner().invoke(commands.main, words, prog_name="gpflow-cool", **options)


def mistake(*arguments):
    """The one line about a mistake; nothing on standard output, exit code 2."""
    result = run(*arguments)
    assert result.exit_code == 2, result.output
    assert result.stdout == "" and result.stderr.count("\n") == 1
    assert result.stderr.startswith("gpflow-cool: ")
    return result.stderr


def write(path, text):
    path.write_text(text)
    return path
