"""What a run tells of itself and leaves behind: names of its files, and figures from its figures.

Nothing here needs numpy: ``ctrps status`` shall answer at once.
"""

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

EVENTS, STATE, FOUND = "events.jsonl", "state.json", "http.json"
"""In the folder of a run: what happened, its last state at its end, where its page is meanwhile."""

PAGE = Path(__file__).with_name("page.html")


def plain(value: Any) -> Any:
    """``value`` as JSON can hold it: a number that is not finite is none.

    Examples
    --------
    >>> plain({"a": [float("nan"), 1.5], 2: None})
    {'a': [None, 1.5], '2': None}
    """
    if isinstance(value, float):
        return value if value - value == 0 else None
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value


def staleness(counts: list[int]) -> dict[str, float] | None:
    """Mean, median, 99th percentile and maximum of pushes counted by staleness; None of none.

    Examples
    --------
    >>> staleness([6, 3, 1])
    {'mean': 0.5, 'p50': 0, 'p99': 2, 'max': 2}
    """
    total = sum(counts)
    if not total:
        return None
    found = {"mean": round(sum(i * n for i, n in enumerate(counts)) / total, 3)}
    for name, share in (("p50", 0.5), ("p99", 0.99), ("max", 1.0)):
        seen = 0
        for value, count in enumerate(counts):
            seen += count
            if seen >= share * total:
                found[name] = value
                break
    return found


def total_rows(figures: Mapping[str, Any]) -> int:
    """Rows trained on over all passes, of a line of figures."""
    passes = int(figures.get("pass", 0)) * int(figures.get("pass_rows", 0))
    return passes + int(figures.get("rows", 0))


def config_of(folder: Path) -> str:
    """The settings of a run as it has written them; of a URL no password is shown."""
    try:
        text = (folder / "config.resolved.yaml").read_text("utf-8", "replace")
    except OSError:
        return ""
    text = re.sub(r"  # \S*config\.resolved\.yaml:\d+$", "", text, flags=re.MULTILINE)
    return re.sub(r"(://)[^/@\s]+@", r"\1…@", text)


def write_json(path: Path, value: dict[str, Any]) -> None:
    """Write a small JSON file, whole or not at all."""
    temporary = path.with_name(f"{path.name}.tmp-{os.getpid()}")
    temporary.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
    os.replace(temporary, path)


def read_json(path: Path) -> dict[str, Any]:
    """A small JSON file, or nothing if it is not there or not whole yet."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
