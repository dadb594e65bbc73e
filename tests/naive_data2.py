"""Slow, obvious twins of feature extraction: text in, text out, one row at a time.

``explain_text`` is the truth that the extraction kernel is compared with, and is itself compared
with what the system that ours replaces has written (``fixtures/golden``).
"""

import csv
import datetime
import io
import itertools
import math
import re
import zoneinfo
from collections import Counter
from dataclasses import dataclass

import numpy as np

from tests import naive

NUMBER = re.compile(
    r"[ \t\n\v\f\r]*([+-]?)(?:"
    r"(0[xX](?:[0-9a-fA-F]+\.?[0-9a-fA-F]*|\.[0-9a-fA-F]+)(?:[pP][+-]?[0-9]+)?)|"
    r"((?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?))"
)


class BadValue(Exception):
    """A field has no place where it is used: (name of the field, its text)."""


def prefix_number(text):
    """The longest numeric prefix, None for an empty text; ValueError when there is none."""
    if not text:
        return None
    found = NUMBER.match(text)
    if not found or "\0" in text:
        raise ValueError(text)
    value = float.fromhex(found[2]) if found[2] else float(found[3])
    if math.isinf(value):
        raise ValueError(text)
    return -value if found[1] == "-" else value


def read_number(text):
    return prefix_number(text)


def number(fields, name):
    try:
        return prefix_number(fields[name])
    except ValueError:
        raise BadValue(name, fields[name]) from None


def bucket(fields, name, breaks):
    x = number(fields, name)
    if x is None:
        return "-1"
    with np.errstate(over="ignore"):
        small = np.float32(x)
    fitting = [i for i, line in enumerate(breaks) if small <= np.float32(line)]
    return str(fitting[0] if fitting else len(breaks))


def dense_value(operator, x):
    """What an operator makes of a number (None: empty), or None where there is nothing."""
    if x is None:
        return 0.0
    if operator == "log":
        return math.log1p(x) if x > -1 else None
    if operator == "sqrt":
        return math.sqrt(x + 1) if x >= -1 else None
    return x


def dense(feature, fields):
    """The number that the model sees."""
    name = feature.fields[0]
    x = number(fields, name)
    if x is None and feature.missing is None:
        return 0.0
    value = dense_value(feature.operator, feature.missing if x is None else x)
    centre, size = feature.scale
    if value is None or abs((value - centre) / size) > np.finfo(np.float32).max:
        raise BadValue(name, fields[name])
    return (value - centre) / size


def values(feature, fields):
    """The values of a sparse feature, each a tuple of texts."""
    texts = [fields[name] for name in feature.fields]
    if feature.operator == "hit":
        elements = texts[1].split(",") if texts[1] else []
        return [("1" if texts[0] in elements else "0",)]
    parts = feature.parts or [feature.operator] * len(texts)
    breaks = feature.breaks or [()] * len(texts)
    choices = [
        text.split(",") if part == "group" else [bucket(fields, name, lines) if lines else text]
        for name, text, part, lines in zip(feature.fields, texts, parts, breaks, strict=True)
    ]
    return list(itertools.product(*choices))


def slots(spec, fields, drop_missing=False):
    """Per sparse feature, in order, its values as (prefix, texts)."""
    found = []
    for feature in spec.sparse:
        kept = values(feature, fields)
        drop = feature.missing == "drop" if feature.missing else drop_missing
        if drop and feature.operator != "hit":
            breaks = feature.breaks or [()] * len(feature.fields)
            kept = [
                texts
                for texts in kept
                if not any(
                    text == ("-1" if lines else "")
                    for text, lines in zip(texts, breaks, strict=True)
                )
            ]
        found.append([(feature.prefix, texts) for texts in kept])
    return found


BLANKS = " \t\n\v\f\r"


def tidied(text, ways):
    """``text`` (bytes) without differences that mean nothing."""
    text = text.decode("latin-1")
    if "strip" in ways:
        text = text.strip(BLANKS)
    if "squeeze" in ways:
        text = re.sub(f"[{BLANKS}]+", " ", text)
    if "lower" in ways:
        text = re.sub("[A-Z]", lambda letter: letter[0].lower(), text)
    return text.encode("latin-1")


def set_of(text):
    """The distinct elements of a comma list (bytes) in order."""
    return b",".join(sorted(set(text.split(b","))))


def time_part(x, part, zone):
    """Hour or day of the week of seconds since 1970."""
    if x is None:
        return ""
    at = datetime.datetime.fromtimestamp(math.floor(x), zoneinfo.ZoneInfo(zone))
    return str(at.hour if part == "hour" else at.isoweekday())


def with_derived(spec, fields, functions):
    """The fields of a row and those derived of them; ``functions`` stand for Python operators."""
    fields = dict(fields)
    for one in spec.derivations:
        text = fields[one.fields[0]].encode()
        if one.operator == "tidy":
            fields[one.name] = tidied(text, one.argument.split("|")).decode()
        elif one.operator == "set":
            fields[one.name] = set_of(text).decode()
        elif one.operator == "python":
            columns = [[fields[name]] for name in one.fields]
            fields[one.name] = functions[one.argument](*columns)[0]
        else:
            fields[one.name] = time_part(number(fields, one.fields[0]), one.operator, one.argument)
    return fields


def label(spec, fields):
    text = fields[spec.label.fields[0]]
    if not re.fullmatch(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)", text) or float(text) not in (-1, 0, 1):
        raise BadValue(spec.label.fields[0], text)
    return 1.0 if float(text) == 1 else 0.0


def row_id(spec, fields):
    return join_fields(spec.id.prefix, [[fields[name] for name in spec.id.fields]])[0]


def explain_text(spec, fields):
    """A row as one line of text, for people.

    ``id, label, dense user, dense ad, dense user_ad, sparse user, sparse ad, sparse user_ad``
    separated by tabs; features of a group by ``,``; values of a feature by ``|``; name and value
    by ``#``.

    Parameters
    ----------
    spec : FeatureSpec
    fields : dict[str, str]
        Name of a field -> its text.
    """
    columns = [row_id(spec, fields), f"{spec.label.prefix}#{fields[spec.label.fields[0]]}"]
    for group in ("user", "ad", "user_ad"):
        texts = []
        for feature in (f for f in spec.dense if f.group == group):
            value = dense(feature, fields)
            direct = feature.operator == "direct"
            text = fields[feature.fields[0]] if direct else f"{value:.6f}"
            texts.append(f"{feature.prefix}#{text}")
        columns.append(",".join(texts))
    made = dict(zip(spec.sparse, slots(spec, fields), strict=True))
    for group in ("user", "ad", "user_ad"):
        texts = [
            "|".join("#".join([prefix, *value]) for prefix, value in found)
            for feature, found in made.items()
            if feature.group == group
        ]
        columns.append(",".join(texts))
    return "\t".join(columns)


@dataclass
class Extracted:
    """What a row gives: values per slot, numbers, label and id."""

    slots: list
    dense: list
    label: float
    id: str | None


def run_row(spec, header, line, drop_missing=False, functions=None):
    """One line of sample text; BadValue when it cannot be used."""
    texts = line.split("\t")
    if len(texts) != len(header):
        raise BadValue(None, line)
    fields = with_derived(spec, dict(zip(header, texts, strict=True)), functions)
    return Extracted(
        slots(spec, fields, drop_missing),
        [dense(feature, fields) for feature in spec.dense],
        label(spec, fields) if spec.label else math.nan,
        row_id(spec, fields) if spec.id else None,
    )


def run_rows(spec, header, lines, drop_missing=False, functions=None):
    """What each usable line of sample text gives."""
    found = []
    for line in lines:
        try:
            found.append(run_row(spec, header, line, drop_missing, functions))
        except BadValue:
            continue
    return found


def run_block(spec, header, lines, **options):
    """A few lines at a time, which makes no difference."""
    return run_rows(spec, header, lines, **options)


def name_values(spec, header, lines, rows, keys, **options):
    """The text of a key of each of some rows; empty where the row has none of it."""
    found = []
    for number, wanted in zip(rows, keys, strict=True):
        names = {}
        for slot in run_row(spec, header, lines[number], **options).slots:
            for prefix, texts in slot:
                key = naive.xxh64(prefix.encode(), 0)
                for text in texts:
                    key = naive.mix(key, naive.xxh64(text.encode(), 0))
                names.setdefault(key, f"{prefix}={'#'.join(texts)}")
        found.append(names.get(wanted, ""))
    return found


def first_rows(rows):
    """{number: [count, first row]} of rows of numbers."""
    found = {}
    for row, numbers in enumerate(rows):
        for number in numbers:
            found.setdefault(number, [0, row])[0] += 1
    return found


def join_fields(prefix, rows):
    """``prefix#field#field…`` of every row."""
    return ["#".join([prefix, *row]) for row in rows]


def split_rows(data, rows, separator):
    """Fields of the lines that begin at ``rows``."""
    found = []
    for start in rows:
        line = data[start:].split(b"\n")[0]
        found.append(line.removesuffix(b"\r").split(separator))
    return found


# joining tables


def read_table(text):
    """Header and rows of a csv text."""
    rows = list(csv.reader(io.StringIO(text.removeprefix("\ufeff"))))
    return [name.strip() for name in rows[0]], rows[1:]


def join_row(plan, header, row, sides):
    """The columns of a sample by ``table.column`` and by name.

    ``sides`` holds (join, header, rows) of each joined table.
    """
    found = dict(zip(header, row, strict=True))
    time = plan.impressions.time
    for name, column in plan.derived.items():
        if column.constant is not None:
            found[name] = column.constant
            continue
        at = datetime.datetime.fromtimestamp(int(found[time]), plan.zone)
        texts = {"hour": str(at.hour), "day": at.strftime("%Y%m%d")}
        found[name] = texts.get(column.time, "1" if at.weekday() < 5 else "0")
    for join, names, rows in sides:
        key = names.index(join.key or join.on)
        match = next((r for r in rows if r[key] == found[join.on]), [""] * len(names))
        for i, name in enumerate(names):
            if i != key:
                found.setdefault(name, match[i])
    return found


def kind_of(plan, time):
    """The split a time stamp belongs to: train, test or None."""
    day = datetime.datetime.fromtimestamp(int(time), plan.zone).date()
    for kind in ("train", "test"):
        days = getattr(plan.split, kind)
        if days and days.first <= day <= days.last:
            return kind
    return None


def parse_times(texts):
    """Whole seconds of each text, or None."""
    return [
        int(text) if re.fullmatch("-?[0-9]+", text) and abs(int(text)) <= 1 << 40 else None
        for text in texts
    ]


def split_plain(data, columns, room):
    """Fields of the rows at the beginning of a text that are simple."""
    rows = []
    for line in data.splitlines(keepends=True) if columns > 1 else []:
        fields = line[:-1].split(b",")
        whole = line.endswith(b"\n") and not set(line[:-1]) & set(b'"\t\r')
        if not whole or len(fields) != columns or len(rows) == room:
            break
        rows.append(fields)
    return rows


def take_fields(starts, ends, rows, column):
    """Borders of a column's fields in some rows; row -1 has an empty one."""
    return [(starts[row][column], ends[row][column]) if row >= 0 else (0, 0) for row in rows]


def hash_fields(texts):
    """The hash of each text."""
    return [naive.xxh64(text.encode(), 0) for text in texts]


def copy_fields(texts, out, at):
    """``out`` with each text at its place."""
    for text, start in zip(texts, at, strict=True):
        out = out[:start] + text + out[start + len(text) :]
    return out


def deal_rows(first, seed, parts, n):
    """Part of each of n rows from ``first`` on."""
    return [naive.mix(seed, row) % parts for row in range(first, first + n)]


def strips_text(table, first, count):
    """Some columns of each row with tabs behind them, and those of a row without fields."""
    rows = [row[first : first + count] for row in table]
    return [b"".join(field + b"\t" for field in row) for row in [*rows, [b""] * count]]


def lines_text(tables, matches, columns, order):
    """Lines of columns (table, number) of tables, whose row is ``matches[table][line]``."""
    lines = []
    for line in order:
        rows = [t[m[line]] if m[line] >= 0 else None for t, m in zip(tables, matches, strict=True)]
        lines.append(b"\t".join(rows[t][c] if rows[t] else b"" for t, c in columns) + b"\n")
    return lines


def lines_size(tables, matches, columns, order):
    return [len(line) for line in lines_text(tables, matches, columns, order)]


# eight bytes at a time


def scan_rows(data, rows, separator):
    """Fields of the lines that begin at ``rows``, each with the hashes of its elements."""
    return [
        [(field, hash_list(field, 0, len(field), b",")) for field in fields]
        for fields in split_rows(data, rows, separator)
    ]


def hash_short(word, n):
    return naive.xxh64(word.to_bytes(8, "little")[:n], 0)


def hash_field(data, start, end):
    return naive.xxh64(data[start:end], 0)


def hash_spans(data, starts, sizes):
    return [naive.xxh64(data[a : a + n], 0) for a, n in zip(starts, sizes, strict=True)]


def hash_list(data, start, end, separator):
    return [naive.xxh64(part, 0) for part in data[start:end].split(separator)]


def bucket_of(value, breaks):
    if math.isnan(value):
        return -1
    return int(bucket({"x": repr(float(value))}, "x", breaks))


def is_hit(elements, wanted):
    return wanted in elements and elements != [naive.xxh64(b"", 0)]


def number_keys(keys, known=()):
    """(distinct keys by first touch, behind those that are known; counts; numbers of the keys)."""
    distinct = list(dict.fromkeys([*known, *keys]))
    times, number = Counter(keys), {key: n for n, key in enumerate(distinct)}
    return distinct, [times[key] for key in distinct], [number[key] for key in keys]


def number_rows(rows, dense):
    """The same of rows of keys; dense keys are known before."""
    return number_keys([key for row in rows for key in row], dense)


def index_numbers(keys):
    """{key: number + 1}, as an index of numbers says."""
    return {key: number + 1 for number, key in enumerate(keys)}


def add_counts(found, keys, counts):
    """Add counts to those of {key: count}."""
    for key, count in zip(keys, counts, strict=True):
        found[key] = found.get(key, 0) + count


def move_counts(index):
    """{key: count} of the rows of an index."""
    return {int(key): int(count) for key, count in index if count}


def counted_above(found, keys, above):
    return [found.get(key, 0) > above for key in keys]


def ungrouped(blocks):
    """Values of blocks, given as their values by partition, grouped; and those of each block."""
    every = [
        value for partition in zip(*blocks, strict=True) for some in partition for value in some
    ]
    return every, [[value for some in block for value in some] for block in blocks]


def gather_texts(data, starts, sizes):
    return b"".join(data[start : start + n] for start, n in zip(starts, sizes, strict=True))


def newlines(data):
    return [at for at, byte in enumerate(data) if byte == ord("\n")]


def line_ends(data, starts):
    return [start + len(data[start:].split(b"\n")[0]) for start in starts]


def copy_lines(data, starts, ends):
    return b"".join(data[a:b] + b"\n" for a, b in zip(starts, ends, strict=True))
