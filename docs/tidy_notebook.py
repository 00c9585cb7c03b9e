"""Remove what went to standard error from an executed notebook: TensorFlow's greetings."""

import json
import sys
from pathlib import Path

path = Path(sys.argv[1])
notebook = json.loads(path.read_text())
for cell in notebook["cells"]:
    if cell["cell_type"] == "code":
        cell["outputs"] = [out for out in cell["outputs"] if out.get("name") != "stderr"]
path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n")
