"""Slow, obvious twins of the kernels that read text and of the making of batches.

Written from the formats' definitions: bytes methods and regular expressions, one row at a time.
"""

import math
import re

import numpy as np

from tests import naive

REQUIRED, OPTIONAL, NONE = 0, 1, 2
LABEL, FEATURE, NUMBER, FIELDS, AFTER_QUOTE, UNCLOSED = 1, 2, 3, 4, 5, 6
INDEX = 14

_NUMBER = re.compile(rb"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")


# text


def parse_number(text: bytes) -> float | None:
    """The float32 nearest to a decimal number; None for anything else."""
    if not _NUMBER.fullmatch(text):
        return None
    with np.errstate(over="ignore"):
        value = float(np.float32(float(text)))
    return value if math.isfinite(value) else None


def parse_key(text: bytes) -> int | None:
    if not re.fullmatch(rb"[0-9]+", text) or int(text) >= 2**64:
        return None
    return int(text)


def parse_label(text: bytes) -> float | None:
    return {1.0: 1.0, 0.0: 0.0, -1.0: 0.0}.get(parse_number(text))


def find(data: bytes, start: int, end: int, byte: int) -> int:
    at = data.find(bytes([byte]), start, end)
    return end if at < 0 else at


def trim(data: bytes, start: int, end: int) -> bytes:
    return data[start:end].rstrip(b" \t\r").lstrip(b" \t")


def eight_bytes(data: bytes) -> int:
    return int.from_bytes(data[:8], "little")


def counted(word: int) -> tuple[int, int, int]:
    """Bits that are set, and zeros below and above them."""
    written = f"{word:064b}"
    return word.bit_count(), 64 - len(written.rstrip("0")), 64 - len(written.lstrip("0"))


def digits_before(data: bytes) -> int:
    return len(data) - len(data.lstrip(b"0123456789"))


def number_before(data: bytes, count: int) -> int:
    return int(data[:count])


def libsvm_rows(data: bytes, final: bool, mode: int):
    """(position, [(label, [(key, value)])], [(reason, text)])."""
    whole = len(data) if final else data.rfind(b"\n") + 1
    rows, bad = [], []
    for line in data[:whole].split(b"\n"):
        tokens = re.split(rb"[ \t]+", line.rstrip(b" \t\r").lstrip(b" \t"))
        if tokens == [b""]:
            continue
        label = math.nan
        if mode == REQUIRED or (mode == OPTIONAL and b":" not in tokens[0]):
            text = tokens.pop(0)
            label = parse_label(text)
            if label is None:
                bad.append((LABEL, text))
                continue
        pairs = [pair(token) for token in tokens]
        if None in pairs:
            bad.append((FEATURE, tokens[pairs.index(None)]))
        else:
            rows.append((label, pairs))
    return whole, rows, bad


def dummy_rows(data: bytes, final: bool, mode: int):
    """(position, [(label, [key])], [(reason, text)])."""
    whole = len(data) if final else data.rfind(b"\n") + 1
    rows, bad = [], []
    for line in data[:whole].split(b"\n"):
        tokens = re.split(rb"[ \t]+", line.rstrip(b" \t\r").lstrip(b" \t"))
        if tokens == [b""]:
            continue
        label = math.nan if mode == NONE else parse_label(tokens[0])
        texts = tokens if mode == NONE else tokens[1:]
        keys = [parse_key(text) for text in texts]
        if label is None:
            bad.append((LABEL, tokens[0]))
        elif None in keys:
            bad.append((INDEX, texts[keys.index(None)]))
        else:
            rows.append((label, keys))
    return whole, rows, bad


def pair(token: bytes) -> tuple[int, float] | None:
    key, colon, value = token.partition(b":")
    found = parse_key(key), parse_number(value)
    return found if colon and None not in found else None


# fields


def split_fields(data: bytes, final: bool, separator: bytes, quoted: bool, columns: int):
    """(position, [[field, ...]], [(reason, text)])."""
    at, rows, bad = 0, [], []
    while at < len(data):
        state, found, end = split_row(data, at, final, separator, quoted)
        if state == "incomplete":
            break
        if state != "row":
            bad.append((state, found))
        elif found is not None and len(found) == columns:
            rows.append(found)
        elif found is not None:
            bad.append((FIELDS, data[at:end].rstrip(b"\n").rstrip(b"\r")))
        at = end
    return at, rows, bad


def split_row(data: bytes, at: int, final: bool, separator: bytes, quoted: bool):
    """("row", fields or None for a blank line, next row), or a reason and the bad text."""
    start, fields = at, []
    while True:
        closed = None
        if quoted and data[at : at + 1] == b'"':
            closed = re.compile(rb'"((?:[^"]|"")*)"(?!")').match(data, at)
            if not closed:
                return (UNCLOSED, data[at:], len(data)) if final else ("incomplete", None, at)
            fields.append(closed[1].replace(b'""', b'"'))
            at = closed.end()
            returns = re.compile(rb"\r*(?=\n|\Z)").match(data, at)
            at = returns.end() if returns else at
            if data[at : at + 1] not in (separator, b"\n", b""):
                end = data.find(b"\n", at)
                if end < 0 and not final:
                    return "incomplete", None, at
                end = len(data) if end < 0 else end
                return AFTER_QUOTE, data[at:end], min(end + 1, len(data))
        else:
            end = re.compile(b"[" + separator + b"\n]|\\Z").search(data, at).start()
            fields.append(data[at:end])
            at = end
        if data[at : at + 1] == separator:
            at += 1
            continue
        if at == len(data) and not final:
            return "incomplete", None, start
        if not closed:
            fields[-1] = fields[-1].rstrip(b"\r")
        blank = not closed and len(fields) == 1 and not fields[0].strip(b" \t\r")
        return "row", None if blank else fields, min(at + 1, len(data))


def csv_rows(rows, label, mode, numeric, slots, names, missing):
    """([(label, numbers, keys, row)], [(reason, text, column)]) of lists of fields."""
    out, bad = [], []
    for number, row in enumerate(rows):
        wrong, found = None, math.nan
        if label >= 0:
            text = row[label].rstrip(b" \t\r").lstrip(b" \t")
            if not (mode == OPTIONAL and text in (b"", *missing)):
                found = parse_label(text)
                wrong = (LABEL, row[label], label) if found is None else None
        numbers = []
        for column in numeric:
            text = row[column].rstrip(b" \t\r").lstrip(b" \t")
            numbers.append(0.0 if text in (b"", *missing) else parse_number(text))
            if numbers[-1] is None and wrong is None:
                wrong = (NUMBER, row[column], column)
        if wrong:
            bad.append(wrong)
            continue
        values = [b"" if row[column] in missing else row[column] for column in slots]
        keys = [key_of(name, value) for name, value in zip(names, values, strict=True)]
        out.append((found, numbers, keys, number))
    return out, bad


def key_of(name: bytes, value: bytes) -> int:
    return naive.mix(naive.xxh64(name, 0), naive.xxh64(value, 0))


def copy_texts(data: bytes, starts, ends) -> bytes:
    return b"".join(data[start:end] for start, end in zip(starts, ends, strict=True))


# batches


def minibatch(rows, order, weights: str):
    """Per row of a batch {key: value}, values added up; per key the rows that hold it."""
    batch, start = [], np.concatenate([[0], np.cumsum(rows.counts.sum(axis=1))])
    for row in order:
        entries, at = {}, int(start[row])
        for count in rows.counts[row]:
            for position in range(at, at + int(count)):
                value = np.float32(1)
                if weights == "mean":
                    value = np.float32(1) / np.float32(count)
                elif rows.values is not None:
                    value = rows.values[position]
                key = int(rows.keys[position])
                entries[key] = entries.get(key, np.float32(0)) + value
            at += int(count)
        batch.append(entries)
    keys = {key for entries in batch for key in entries}
    return batch, {key: sum(key in entries for entries in batch) for key in keys}
