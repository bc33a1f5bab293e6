"""Write requirements.lock: the versions of constraints.txt with the hashes of their wheels.

    python .ci/lock.py

The hashes are those of the files that pip chooses for this interpreter and platform.
"""

import json
import platform
import subprocess
import sys
from pathlib import Path

report = subprocess.run(
    [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed",
     "--report", "-", "-c", "constraints.txt", "-e", ".[test]"],
    check=True, stdout=subprocess.PIPE, text=True,
).stdout  # fmt: skip
lines = []
for entry in json.loads(report)["install"]:
    archive = entry["download_info"].get("archive_info")
    if archive is None:  # llpauc itself
        continue
    version = entry["metadata"]["version"].partition("+")[0]  # torch 2.13.0+cpu
    digest = archive["hashes"]["sha256"]
    lines.append(f"{entry['metadata']['name'].lower()}=={version} --hash=sha256:{digest}\n")
place = f"{sys.implementation.name} {sys.version_info.major}.{sys.version_info.minor}"
Path("requirements.lock").write_text(
    f"# Written by `make lock` for {place}, {platform.system()} {platform.machine()}.\n"
    "# pip install --require-hashes -r requirements.lock && pip install --no-deps .\n"
    + "".join(sorted(lines)),
    encoding="utf-8",
)
