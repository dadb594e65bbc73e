"""Pure array functions, compiled by Numba; nothing of ctrps is imported here.

Numba imports scipy, where there is one, to see whether it has a BLAS: half as long again as its own
import. No kernel needs it, so it is out of sight meanwhile; whoever imports it later finds it.
"""

import contextlib
import sys

if "scipy" not in sys.modules:
    sys.modules["scipy"] = None  # type: ignore[assignment]
    try:
        with contextlib.suppress(ImportError):
            import numba.np.arraymath  # noqa: F401
    finally:
        del sys.modules["scipy"]
