"""Click-through-rate models trained with a parameter server.

The command ``ctrps`` is in ``ctrps.cli``; importing the package loads nothing heavy. What Python
programs use is loaded when it is first asked for: ``FTRLClassifier``, ``FMClassifier``,
``Cluster``.
"""

import importlib
from typing import Any

__version__ = "0.1.0"
__all__ = ["Cluster", "FMClassifier", "FTRLClassifier", "__version__"]

_HOMES = {
    "Cluster": "ctrps.localcluster",
    "FMClassifier": "ctrps.estimators",
    "FTRLClassifier": "ctrps.estimators",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
