"""Click-through-rate models trained with a parameter server.

The command ``ctrps`` is in ``ctrps.cli``; importing the package loads nothing heavy.
"""

__version__ = "0.1.0"
