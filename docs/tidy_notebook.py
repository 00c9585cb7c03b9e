"""Remove from executed notebooks times, what went to standard error, and names of drawn objects."""

import json
import sys
from pathlib import Path

NAMES = ("Text(", "[Text(", "<matplotlib", "[<matplotlib")


def wanted(output: dict) -> bool:
    """Whether an output is more than TensorFlow's greetings, or the value of a call that draws."""
    shown = "".join(output.get("data", {}).get("text/plain", ""))
    drawn = output["output_type"] == "execute_result" and shown.startswith(NAMES)
    return output.get("name") != "stderr" and not drawn


for name in sys.argv[1:]:
    path = Path(name)
    notebook = json.loads(path.read_text())
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            cell["metadata"].pop("execution", None)
            cell["outputs"] = [output for output in cell["outputs"] if wanted(output)]
    path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n")
