"""Run every benchmark and write results.json: `python -m benchmarks [--quick] [NAME ...]`.

Each module bench_*.py has `run(quick) -> {name: {"ratio": ..., "goal": ..., details}}`, the ratio
measured against its rival in the same run, interleaved, median of several. Larger is better, except
for entries marked "smaller is better".
"""

from __future__ import annotations

import argparse
import importlib
import json
import platform
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

HERE = Path(__file__).parent


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", help="modules to run, without bench_; all by default")
    parser.add_argument("--quick", action="store_true", help="smaller sizes")
    options = parser.parse_args()
    names = sorted(path.stem.removeprefix("bench_") for path in HERE.glob("bench_*.py"))
    unknown = set(options.names) - set(names)
    if unknown:
        parser.error(f"unknown benchmark {', '.join(unknown)}; choose from: {', '.join(names)}")
    path = HERE / "results.json"
    results = json.loads(path.read_text()) if path.exists() and options.names else {}
    for name in options.names or names:
        print(f"running {name} ...", flush=True)
        started = time.perf_counter()
        for key, result in (
            importlib.import_module(f"benchmarks.bench_{name}").run(options.quick).items()
        ):
            results[key] = {**result, "quick": options.quick, "machine": platform.machine()}
        print(f"  {time.perf_counter() - started:.0f} s")
        temporary = path.with_suffix(".tmp")
        temporary.write_text(json.dumps(results, indent=2) + "\n")
        temporary.replace(path)
    show(results)
    return 0


def show(results: dict[str, dict[str, object]]) -> None:
    table = Table(
        title="against the rival in the same run (larger is better)", title_justify="left"
    )
    for column in ("benchmark", "ratio", "goal", "", "details"):
        table.add_column(column, justify="right" if column in ("ratio", "goal") else "left")
    for name, result in results.items():
        ratio, goal = result["ratio"], result["goal"]
        details = ", ".join(
            f"{key} {value:.3g}" if isinstance(value, float) else f"{key} {value}"
            for key, value in result.items()
            if key not in ("ratio", "goal", "quick", "machine", "smaller is better")
        )
        met, target = "", "-"
        if goal is not None:
            smaller = bool(result.get("smaller is better"))
            difference = float(str(ratio)) - float(str(goal))
            met = "met" if (difference <= 0 if smaller else difference >= 0) else "missed"
            target = f"{'<=' if smaller else '>='} {goal:g}"
        table.add_row(name, f"{ratio:.3g}", target, met, details)
    Console(width=160).print(table)


if __name__ == "__main__":
    raise SystemExit(main())
