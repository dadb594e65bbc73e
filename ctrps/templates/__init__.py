"""Texts that come with the package: job files to begin with, and the pages of the errors."""

from importlib.resources import files


def read(name: str) -> str:
    """A text of this folder.

    Examples
    --------
    >>> read("errors.md").splitlines()[0]
    '# Errors'
    """
    return files(__name__).joinpath(name).read_text(encoding="utf-8")
