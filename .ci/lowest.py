"""Print the lowest version of every dependency in pyproject.toml, as constraints for pip.

    python .ci/lowest.py > lowest.txt && pip install -c lowest.txt -e '.[test]'

torch keeps the version of constraints.txt; the tools of the extras test, docs and bench have none.
"""

import re
import tomllib
from pathlib import Path

project = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["project"]
extras = project["optional-dependencies"]
lines = list(project["dependencies"])
for extra in extras.keys() - {"test", "docs", "bench"}:
    lines += extras[extra]
pinned = Path("constraints.txt").read_text(encoding="utf-8")
for name, version in (line.split(">=") for line in lines):
    if name == "torch":
        (version,) = re.findall(r"^torch==(.+)$", pinned, re.MULTILINE)
    print(f"{name}=={version}")
