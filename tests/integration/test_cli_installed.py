"""The installed command, in processes of its own: help at once, and no noise."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
from commands import PLAIN, run
from numpy.testing import assert_allclose

from gpflow_cool.loading import load

COMMAND = Path(sys.executable).with_name("gpflow-cool")


def installed(*arguments, **options):
    """The command that was installed, in a process of its own."""
    return subprocess.run(
        [COMMAND, *map(str, arguments)], capture_output=True, text=True, timeout=600, **options
    )


def new_process(code, **options):
    """Python code in a process of its own."""
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, **options)


def test_help_loads_nothing_that_takes_long():
    result = installed("--help", env={**os.environ, "PYTHONPROFILEIMPORTTIME": "1"})
    assert result.returncode == 0
    for name in ("fit", "predict", "impute", "evaluate", "report", "demo", "study", "completion"):
        assert name in result.stdout
    lines = [line.rsplit("|", 1) for line in result.stderr.splitlines()]
    assert all(line[0].startswith("import time:") for line in lines)  # it says nothing else
    loaded = {line[1].strip().split(".")[0] for line in lines}
    assert "gpflow_cool" in loaded and "click" in loaded
    assert not loaded & {"tensorflow", "gpflow", "scipy", "pandas", "matplotlib"}


def test_importing_the_package_imports_nothing_that_is_optional(tmp_path):
    """
    GPflow and TensorFlow import some of it themselves: so much is not ours.

    Then the demo runs without it: `make demo` installs the package without its extras.
    """
    code = (
        "import json, sys\n"
        "import gpflow\n"
        "before = set(sys.modules)\n"
        "import gpflow_cool, gpflow_cool.models\n"
        "print(json.dumps(sorted(set(sys.modules) - before)))\n"
        "sys.modules['sklearn'] = sys.modules['pandas'] = None\n"
        "from gpflow_cool.cli.commands import main\n"
        "main(['demo', '--out', 'out'], prog_name='gpflow-cool')\n"
    )
    result = new_process(code, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    tops = {name.split(".")[0] for name in json.loads(result.stdout.splitlines()[0])}
    assert "gpflow_cool" in tops
    assert not tops & {"sklearn", "pandas", "matplotlib", "tensorboard", "click", "pyarrow"}
    assert (tmp_path / "out" / "level_curves.png").is_file()


def test_many_rows_are_refused_at_once(tmp_path):
    rows = np.random.default_rng(0).normal(size=[10_000, 3])
    pd.DataFrame(rows, columns=["a", "b", "c"]).to_csv(tmp_path / "data.csv", index=False)
    code = (
        "import sys\n"
        "from gpflow_cool.cli.commands import main\n"
        "try:\n"
        "    main(['evaluate', 'data.csv', '--targets', 'a'])\n"
        "finally:\n"
        "    print('tensorflow' in sys.modules)\n"
    )
    result = new_process(code, cwd=tmp_path)
    assert result.returncode == 2 and result.stdout == "False\n", result.stderr
    assert result.stderr.startswith("gpflow-cool: 10000 rows will take about ")
    assert "11.2 GB of memory" in result.stderr and "--large" in result.stderr
    assert result.stderr.count("\n") == 1


def write_arff(path, table):
    """A table with a nominal column beside its numbers."""
    names = "".join(f"@attribute {name} real\n" for name in table)
    rows = "".join(",".join(map(str, row)) + ",red\n" for row in table.to_numpy().tolist())
    path.write_text(f"@relation r\n{names}@attribute colour {{red, blue}}\n@data\n{rows}")


def test_the_whole_way_without_noise(place, tmp_path):
    """From a file with a column that is left out, and where TensorFlow may say what it likes."""
    write_arff(tmp_path / "data.arff", pd.read_csv(place / "data.csv"))
    arguments = ["--targets", "heat,cold", "--out", "m", "--exclude", "colour", *PLAIN]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("TF_")}
    fit = installed("fit", "data.arff", *arguments, cwd=tmp_path, env=environment)
    assert (fit.returncode, fit.stderr) == (0, "")
    assert "Written to m." in fit.stdout
    out = tmp_path / "p.csv"
    predict = installed("predict", "m", place / "new.csv", "--out", out, "--json", cwd=tmp_path)
    assert (predict.returncode, predict.stderr) == (0, "")
    mean = load(place / "model").predict(pd.read_csv(place / "new.csv")[["x", "y"]])
    assert_allclose(pd.read_csv(out)[["heat", "cold"]], mean, rtol=1e-4)
    wrong = installed("predict", "m", place / "new.csv", "--out", out, cwd=tmp_path)
    assert wrong.returncode == 2 and wrong.stdout == "" and "Traceback" not in wrong.stderr
    assert wrong.stderr == f"gpflow-cool: {out} exists already: choose another name, or --force.\n"


def test_shell_completion(place):
    source = run(env={"_GPFLOW_COOL_COMPLETE": "bash_source"})
    assert "_gpflow_cool_completion" in source.stdout
    words = f"gpflow-cool fit {place / 'data.csv'} --targets heat,c"
    env = {"_GPFLOW_COOL_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": "4"}
    assert run(env=env).stdout == "plain,heat,cold\n"


def test_the_package_is_the_command_line():
    command = [sys.executable, "-m", "gpflow_cool", "--help"]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert said == run("--help").output.replace("main", "gpflow-cool", 1)
