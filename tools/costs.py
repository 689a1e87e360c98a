"""Write `tests/durations.json` from what a run of `make test` recorded: `make durations`.

It says what each layer, each file and each test of a second or more costs, in seconds of processor time with that of servers
and JVMs; `tests/docs/test_costs.py` judges it. A run of some files renews what is known of these.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[1]
RECORD: Final = ROOT / "tests" / "durations.json"
TOLD_FROM_S: Final = 1.0


def read(folder: Path) -> dict[str, dict[str, Any]]:
    """Each file's cost: in all, of how many tests, of what its tests share, and of each dear test."""
    files: dict[str, dict[str, Any]] = defaultdict(lambda: {"seconds": 0.0, "tests": 0, "shared": 0.0, "dear": {}})
    for path in sorted(folder.glob("*.jsonl")):
        for line in path.read_text(encoding="utf-8").splitlines():
            cost = json.loads(line)
            name, _, test = cost["test"].partition("::")
            file = files[name]
            if "fixture" in cost:
                file["shared"] += cost["cpu"]
                continue
            file["seconds"] += cost["cpu"]
            file["tests"] += 1
            if cost["cpu"] >= TOLD_FROM_S:
                file["dear"][test] = round(cost["cpu"], 1)
    return files


def main() -> int:
    """Renew the record from the folder that is named; return the exit code."""
    known = json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.exists() else {}
    for name, file in read(Path(sys.argv[1])).items():
        known[name] = {**file, "seconds": round(file["seconds"], 1), "shared": round(file["shared"], 1)}
    kept = {name: file for name, file in sorted(known.items()) if (ROOT / name).exists()}
    lines = [
        f" {json.dumps(name)}: {json.dumps(file, sort_keys=True, ensure_ascii=False)}" for name, file in kept.items()
    ]
    RECORD.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    print(
        f"{RECORD.relative_to(ROOT)}: {sum(file['seconds'] + file['shared'] for file in kept.values()):.0f} s of processor time"
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
