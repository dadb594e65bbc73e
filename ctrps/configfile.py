"""Settings as text with their places: job files in YAML and ini, the environment, ``--set``.

Reads the notations and remembers where each key stands, so that an error can point at it. Which
keys exist, what type they have and what they mean is not known here but in ``ctrps.config``.
Every value stays text: the same rules then hold for a YAML scalar, an ini line and a variable,
and ``1e-3`` or ``NULL`` is never guessed to be something else.
"""

import csv
import math
import os
import re
import unicodedata
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import yaml

from ctrps.errors import ConfigError

# A job file has some kilobytes; more than this is a data file named by mistake.
MAX_FILE_BYTES = 1 << 20
# Width of the source line under an error; longer lines are cut around the caret.
SHOWN_COLUMNS = 100

Value = str | list[str] | None | dict[str, str]


@dataclass(frozen=True, slots=True)
class Place:
    """Where a piece of text stands.

    Parameters
    ----------
    source
        The file as the user named it, ``--set``, or the name of a variable.
    line
        From 1; 0 where the source has no lines.
    column
        From 1, in characters of ``text``.
    text
        The source line.
    """

    source: str
    line: int
    column: int
    text: str

    def __str__(self) -> str:
        return f"{self.source}:{self.line}:{self.column}" if self.line else self.source

    @property
    def origin(self) -> str:
        """Short form for lists of settings: ``job.yaml:12``, ``--set``."""
        return f"{self.source}:{self.line}" if self.line else self.source

    def excerpt(self) -> str:
        """The source line and below it a caret under the column."""
        start = max(0, self.column - 1 - SHOWN_COLUMNS // 2)
        line = _printable(self.text[start : start + SHOWN_COLUMNS])
        before = line[: self.column - 1 - start]
        width = sum(2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in before)
        return f"    {line}\n    {' ' * width}^"


@dataclass(frozen=True, slots=True)
class Setting:
    """One key as it was stated.

    Parameters
    ----------
    key
        Dotted, for example ``train.lanes``.
    value
        Text, a list of texts, ``None`` for YAML's null, or an empty dict where a whole section
        stands.
    at, value_at
        Places of key and value.
    base
        Folder that relative paths in the value refer to.
    loose
        The notation has no lists: a list is comma-separated text, and quotes are still there.
    """

    key: str
    value: Value
    at: Place
    value_at: Place
    base: Path
    loose: bool


@dataclass(frozen=True, slots=True)
class Problem:
    """Something wrong with a setting: what, with the remedy, and where; the id of the error."""

    place: Place
    what: str
    id: str = "E-CONFIG-VALUE"


Found = tuple[list[Setting], list[Problem]]


def as_error(problems: Iterable[Problem]) -> ConfigError:
    """One error that shows all problems, those of the file first and in its order."""
    ordered = sorted(problems, key=lambda p: (not p.place.line, p.place.line, p.place.column))
    first, *rest = dict.fromkeys(ordered)  # a key may stand for several settings
    blocks = [f"{first.what}\n{first.place.excerpt()}"]
    blocks += [f"{p.place}: {p.what}\n{p.place.excerpt()}" for p in rest]
    return ConfigError("\n".join(blocks), where=str(first.place), id=first.id)


def read_file(path: Path, sections: Collection[str]) -> Found:
    """Read a job file: ini when its name ends in .ini or .cfg, otherwise YAML.

    Parameters
    ----------
    path
        The file.
    sections
        Dotted names of the sections to look into; anything nested elsewhere is returned as one
        setting whose value is a section.

    Raises
    ------
    ConfigError
        The file cannot be read at all.
    """
    shown = display(path)
    try:
        with open(path, "rb") as file:
            raw = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        hint = "give the job file with -c FILE"
        raise ConfigError(
            f"cannot read: {error.strerror}", where=shown, hint=hint, id="E-CONFIG-FILE"
        ) from None
    if len(raw) > MAX_FILE_BYTES:
        raise ConfigError(
            "is larger than 1 MiB", where=shown, hint="is this a job file?", id="E-CONFIG-FILE"
        )
    text = raw.removeprefix(b"\xef\xbb\xbf").decode("utf-8", "surrogateescape")
    base = Path(os.path.abspath(path)).parent
    reader = _IniReader if path.suffix.lower() in (".ini", ".cfg") else _YamlReader
    found, problems = reader(text, shown, base, sections).read()
    return found, [replace(problem, id="E-CONFIG-SYNTAX") for problem in problems]


def read_overrides(items: Sequence[str], base: Path) -> Found:
    """Read ``section.key=value`` arguments; one key with two different values is a problem."""
    found: dict[str, Setting] = {}
    problems = []
    for item in items:
        key, equals, value = item.partition("=")
        at = Place("--set", 0, 1, item)
        if not equals:
            problems.append(Problem(at, f"{key} has no value; write --set section.key=value"))
            continue
        value_at = Place("--set", 0, len(key) + 2, item)
        setting = Setting(key.strip(), value, at, value_at, base, True)
        first = found.setdefault(setting.key, setting)
        if first.value != value:
            what = f"{setting.key} is set twice, to {first.value} and to {value}; keep one"
            problems.append(Problem(at, what))
    return list(found.values()), problems


def read_environment(
    environ: Mapping[str, str], names: Mapping[str, str], base: Path
) -> list[Setting]:
    """Read the variables in ``names`` (variable -> dotted key)."""
    found = []
    for variable in sorted(names.keys() & environ.keys()):
        value = environ[variable]
        line = f"{variable}={value}"
        at = Place(variable, 0, 1, line)
        value_at = Place(variable, 0, len(variable) + 2, line)
        found.append(Setting(names[variable], value, at, value_at, base, True))
    return found


def split_list(text: str) -> list[str]:
    """Split the list notation of ini files, variables and ``--set``.

    Elements are separated by commas and may stand in double quotes. ``[a, b]`` is read as YAML.

    Raises
    ------
    ValueError
        The brackets or quotes do not close.

    Examples
    --------
    >>> split_list('a b.csv, "c, d.csv"')
    ['a b.csv', 'c, d.csv']
    >>> split_list("[a, 'b']")
    ['a', 'b']
    >>> split_list("")
    []
    """
    text = text.strip()
    if text.startswith("[") and text.endswith("]"):
        try:
            node = yaml.compose(text, Loader=_Loader)
        except (yaml.YAMLError, RecursionError):
            raise ValueError("is not a list such as [a, b]") from None
        if isinstance(node, yaml.SequenceNode) and all(
            isinstance(item, yaml.ScalarNode) for item in node.value
        ):
            return [item.value for item in node.value]
        raise ValueError("is not a list of plain values such as [a, b]")
    if not text:
        return []
    try:
        return [part.strip() for part in next(csv.reader([text], skipinitialspace=True))]
    except csv.Error:
        raise ValueError("is not a comma-separated list") from None


def unquote(text: str) -> str:
    """Take off double quotes that stand around the whole text.

    Examples
    --------
    >>> unquote('"a # b"')
    'a # b'
    >>> unquote('"a" or "b"')
    '"a" or "b"'
    """
    inner = text[1:-1]
    return inner if len(text) >= 2 and text == f'"{inner}"' and '"' not in inner else text


def display(path: str | os.PathLike[str]) -> str:
    r"""A path as one line of text that every stream can print.

    Examples
    --------
    >>> print(display("a\udcff b"))
    a\xff b
    """
    text = os.fspath(path).encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    return text.replace("\n", "\\n")


def _printable(text: str) -> str:
    """One character for each character, none of which moves the cursor otherwise."""
    return "".join(c if c.isprintable() else " " if c == "\t" else "?" for c in text)


class _IniReader:
    """``[section]`` and ``key = value`` lines; ``#`` and ``;`` begin comments."""

    HEADER = re.compile(r"\s*\[([^\[\]]*)\]\s*(?:[;#].*)?$")
    ENTRY = re.compile(r"\s*([^\s=:][^=:]*?)\s*[=:]\s*(.*)$")
    COMMENT = re.compile(r"\s*(?:[;#].*)?$")
    # A comment mark counts at the start or after a blank, and not inside double quotes.
    UNCOMMENTED = re.compile(r'(?:"[^"]*"|(?!(?:^|(?<=\s))[;#]).)*')

    def __init__(self, text: str, source: str, base: Path, sections: Collection[str]):
        self.lines = re.split(r"\r\n|\r|\n", text)
        self.source, self.base, self.sections = source, base, sections
        self.found: dict[str, Setting] = {}
        self.problems: list[Problem] = []

    def read(self) -> Found:
        section: str | None = None
        for number, line in enumerate(self.lines, 1):
            if self.COMMENT.match(line):
                continue
            if header := self.HEADER.match(line):
                section = header[1].strip()
                self._header(section, Place(self.source, number, header.start(1) + 1, line))
            elif entry := self.ENTRY.match(line):
                self._entry(section, entry, number, line)
            else:
                at = Place(self.source, number, 1, line)
                what = "this line is neither [section] nor key = value"
                self.problems.append(Problem(at, what))
        return list(self.found.values()), self.problems

    def _header(self, section: str, at: Place) -> None:
        if section != "job" and section not in self.sections:
            self.found.setdefault(section, Setting(section, {}, at, at, self.base, True))

    def _entry(self, section: str | None, entry: re.Match[str], number: int, line: str) -> None:
        at = Place(self.source, number, entry.start(1) + 1, line)
        if section is None:
            what = f"{entry[1]} stands before the first [section]"
            self.problems.append(Problem(at, what))
            return
        # Outside every section is [job]: YAML's top level has no ini counterpart.
        key = entry[1] if section == "job" else f"{section}.{entry[1]}"
        if key in self.found:
            self.problems.append(Problem(at, _twice(key, self.found[key].at, at)))
            return
        kept = self.UNCOMMENTED.match(entry[2])
        value = (kept[0] if kept else "").rstrip()
        value_at = Place(self.source, number, entry.start(2) + 1, line)
        self.found[key] = Setting(key, value, at, value_at, self.base, True)


class _Loader(yaml.SafeLoader):
    """Only composes. Lets bytes through that are not UTF-8, because paths may hold them."""

    def check_printable(self, data: str) -> None:
        super().check_printable(re.sub("[\udc80-\udcff]", "?", data))


class _YamlReader:
    """Walks the composed nodes of the known sections, so aliases cannot blow up."""

    PLAIN = frozenset(
        f"tag:yaml.org,2002:{name}"
        for name in "str int float bool null timestamp merge value seq map".split()
    )

    def __init__(self, text: str, source: str, base: Path, sections: Collection[str]):
        self.text, self.source, self.base, self.sections = text, source, base, sections
        self.lines = re.split("\r\n|[\r\n\x85\u2028\u2029]", text)
        self.found: list[Setting] = []
        self.problems: list[Problem] = []

    def read(self) -> Found:
        try:
            root = yaml.compose(self.text, Loader=_Loader)
        except RecursionError:
            self.problems.append(Problem(self._place(0, 0), "is nested too deeply"))
            return [], self.problems
        except yaml.YAMLError as error:
            self.problems.append(self._syntax(error))
            return [], self.problems
        if isinstance(root, yaml.MappingNode):
            self._mapping(root, "")
        elif root is not None:
            what = "expected sections such as `train:`; is this a job file?"
            self.problems.append(Problem(self._at(root), what))
        return self.found, self.problems

    def _mapping(self, node: yaml.MappingNode, prefix: str) -> None:
        seen: dict[str, Place] = {}
        for key_node, value_node in node.value:
            at = self._at(key_node)
            if not isinstance(key_node, yaml.ScalarNode):
                self.problems.append(Problem(at, "a key must be a plain word"))
                continue
            key = prefix + key_node.value
            if key in seen:
                self.problems.append(Problem(at, _twice(key, seen[key], at)))
                continue
            seen[key] = at
            self._entry(key, at, value_node)

    def _entry(self, key: str, at: Place, node: yaml.Node) -> None:
        if wrong := self._unreadable(node):
            self.problems.append(wrong)
        elif key in self.sections and isinstance(node, yaml.MappingNode):
            self._mapping(node, key + ".")
        # `train:` with nothing below it is an empty section.
        elif key not in self.sections or not node.tag.endswith(":null"):
            value = self._value(node)
            self.found.append(Setting(key, value, at, self._at(node), self.base, False))

    def _unreadable(self, node: yaml.Node) -> Problem | None:
        if node.tag not in self.PLAIN:
            return Problem(self._at(node), f"the tag {node.tag} is not read; give a plain value")
        if isinstance(node, yaml.SequenceNode):
            for item in node.value:
                if not isinstance(item, yaml.ScalarNode):
                    return Problem(self._at(item), "an element of a list must be a plain value")
        return None

    def _value(self, node: yaml.Node) -> Value:
        if isinstance(node, yaml.MappingNode):
            return {}
        if isinstance(node, yaml.SequenceNode):
            return [item.value for item in node.value]
        return None if node.tag.endswith(":null") else str(node.value)

    def _syntax(self, error: yaml.YAMLError) -> Problem:
        if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
            mark = error.problem_mark
            return Problem(self._place(mark.line, mark.column), f"not YAML: {error.problem}")
        if isinstance(error, yaml.reader.ReaderError):
            lines = re.split("\r\n|[\r\n\x85\u2028\u2029]", self.text[: error.position])
            place = self._place(len(lines) - 1, len(lines[-1]))
            return Problem(place, f"not YAML: {error.reason}")
        return Problem(self._place(0, 0), f"not YAML: {error}")

    def _at(self, node: yaml.Node) -> Place:
        return self._place(node.start_mark.line, node.start_mark.column)

    def _place(self, line: int, column: int) -> Place:
        """Place of a mark, which counts from 0 and at the end of the text has no line."""
        text = self.lines[line] if line < len(self.lines) else ""
        return Place(self.source, line + 1, column + 1, text)


def _twice(key: str, first: Place, second: Place) -> str:
    return f"{key} is given twice, in lines {first.line} and {second.line}; keep one"


def yaml_text(value: object) -> str:
    """A value of a setting on one line of YAML."""
    if isinstance(value, Path):
        value = str(value)
    elif isinstance(value, tuple):
        value = [str(item) for item in value]
    text = "".join(value) if isinstance(value, list) else str(value)
    # Line breaks in other styles of YAML would spread the value over several lines.
    style = None if text.isprintable() else '"'
    shown: str = yaml.safe_dump(
        value, allow_unicode=True, default_flow_style=True, default_style=style, width=math.inf
    )
    return shown.removesuffix("...\n").rstrip("\n")
