"""The command line, called in this process."""

from click.testing import CliRunner

from gpflow_cool.cli import commands


def run(*arguments, **options):
    return CliRunner().invoke(
        commands.main, list(map(str, arguments)), prog_name="gpflow-cool", **options
    )


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
