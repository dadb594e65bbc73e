"""Slow, obvious twins of the kernels of key-value text, of Criteo's numbers and of text out."""

import math
import re

from tests import naive
from tests.naive_data import LABEL, OPTIONAL, REQUIRED, key_of, parse_key, parse_label, parse_number

NONE = 2
TRIPLE, HEAD, TAG, NAMESPACE, WORD, MANY, PAIR = 7, 8, 9, 10, 11, 12, 13
MAX_SLOTS = 4096


def lines(data: bytes, final: bool):
    """(position, lines without blanks around them); blank lines are left out."""
    whole = len(data) if final else data.rfind(b"\n") + 1
    stripped = [line.rstrip(b" \t\r").lstrip(b" \t") for line in data[:whole].split(b"\n")]
    return whole, [line for line in stripped if line]


def token_end(data: bytes, start: int, end: int, other: int) -> int:
    found = [at for at in range(start, end) if data[at] in (32, 9, other)]
    return found[0] if found else end


# libffm


def libffm_rows(data: bytes, final: bool, mode: int):
    """(position, [(label, [(field, key, value)])], [(reason, text)])."""
    whole, found = lines(data, final)
    rows, bad = [], []
    for line in found:
        tokens = re.split(rb"[ \t]+", line)
        label = math.nan
        if mode == REQUIRED or (mode == OPTIONAL and b":" not in tokens[0]):
            text = tokens.pop(0)
            label = parse_label(text)
            if label is None:
                bad.append((LABEL, text))
                continue
        triples = [triple(token) for token in tokens]
        if None in triples:
            bad.append((TRIPLE, tokens[triples.index(None)]))
        else:
            rows.append((label, triples))
    return whole, rows, bad


def triple(token: bytes):
    parts = token.split(b":")
    if len(parts) != 3:
        return None
    found = parse_key(parts[0]), parse_key(parts[1]), parse_number(parts[2])
    return None if None in found or found[0] >= MAX_SLOTS else found


# VW


def vw_rows(data: bytes, final: bool, mode: int, tagged: bool, known: list[bytes]):
    """(position, [(label, tag, [(slot, key, value, scale)])], [(reason, text)], names of slots)."""
    whole, found = lines(data, final)
    names, rows, bad = list(known), [], []
    for line in found:
        seen = list(names)
        row = vw_row(line, mode, tagged, seen)
        if isinstance(row[0], int):
            bad.append(row)
        else:
            rows.append(row[1:])
            names = seen
    return whole, rows, bad, names


def vw_row(line: bytes, mode: int, tagged: bool, names: list[bytes]):
    """("row", label, tag, features), or (reason, text)."""
    head, bar, rest = line.partition(b"|")
    words = re.findall(rb"[^ \t]+", head)
    text = tag = b""
    touches = bar and head[-1:] not in (b"", b" ", b"\t")
    if words and (touches or words[-1].startswith(b"'")):
        text = words.pop()
        head = head.rstrip(b" \t").removesuffix(text)
        tag = text.removeprefix(b"'")
    if tag and not tagged:
        return TAG, text
    label = math.nan
    if mode == REQUIRED or (mode == OPTIONAL and words):
        label = parse_label(words[0]) if words else None
        if label is None:
            return LABEL, words[0] if words else b""
    if words[1:] and (len(words) > 2 or parse_number(words[1]) != 1):
        return HEAD, re.match(rb"[^ \t]+[ \t]+(.*)", head.rstrip(b" \t"), re.DOTALL).group(1)
    features = []
    for part in rest.split(b"|") if bar else []:
        wrong = vw_namespace(part, names, features)
        if wrong:
            return wrong
    return "row", label, tag, features


def vw_namespace(part: bytes, names: list[bytes], features: list):
    name_text = re.match(rb"[^ \t]*", part).group()
    name, scale = vw_number(name_text)
    if scale is None or (not name and name_text):
        return NAMESPACE, name_text
    name = name or b" "
    if name not in names:
        if len(names) == MAX_SLOTS:
            return MANY, name_text
        names.append(name)
    for word in re.findall(rb"[^ \t]+", part[len(name_text) :]):
        feature, value = vw_number(word)
        if not feature or value is None or (scale != 1 and abs(value * scale) >= 2.0**127):
            return WORD, word
        features.append((names.index(name), key_of(name, feature), value, scale))
    return None


def vw_number(word: bytes):
    name, colon, number = word.partition(b":")
    return name, parse_number(number) if colon else 1.0


# slots


def slot_rows(
    data: bytes, final: bool, mode: int, turned: bool, plain, reserved: int, id_slot, known
):
    """(position, [(label, id, [(slot, key)])], [(reason, text)], names of slots)."""
    whole, found = lines(data, final)
    names, rows, bad = list(known), [], []
    for line in found:
        seen = list(names)
        row = slot_row(line, mode, turned, list(plain), reserved, id_slot, seen)
        if isinstance(row[0], int):
            bad.append(row)
        else:
            rows.append(row[1:])
            names = seen
    return whole, rows, bad, names


def slot_row(line: bytes, mode: int, turned: bool, plain, reserved: int, id_slot, names):
    """("row", label, id, keys), or (reason, text)."""
    label, row_id, keys = None, b"", []
    for word in re.findall(rb"[^ \t,]+", line):
        if b":" in word:
            name, _, value = word.partition(b":")
            name, value = (value, name) if turned else (name, value)
            if not name:
                return PAIR, word
            if name not in names:
                names.append(name)
            slot = names.index(name)
        elif plain:
            slot, value = plain.pop(0), word
        else:
            return PAIR, word
        if slot == 0 and mode != NONE:
            if label is not None or parse_label(value) is None:
                return LABEL, value
            label = parse_label(value)
        elif slot == id_slot:
            row_id = value
        elif slot >= reserved:
            keys.append((slot - reserved, key_of(names[slot], value)))
    if label is None and mode == REQUIRED:
        return LABEL, b""
    return "row", math.nan if label is None else label, row_id, keys


def by_slot(slots, sizes, width: int):
    """(counts of each row, order)."""
    counts, order, start = [], [], 0
    for size in sizes:
        row = list(range(start, start + size))
        counts.append([sum(slots[at] == slot for at in row) for slot in range(width)])
        order += sorted(row, key=lambda at: slots[at])
        start += size
    return counts, order


# Criteo


def log_levels(rows, columns, missing):
    """([[level of each column]], [(row, column)]) of lists of fields."""
    out, bad = [], []
    for number, row in enumerate(rows):
        levels = [log_level(row[column], missing) for column in columns]
        if None in levels:
            bad.append((number, columns[levels.index(None)]))
        out.append(levels)
    return out, bad


def level_keys(levels, slots, seeds, hashes, keys):
    """Keys of rows, with those of levels in their slots."""
    rows = keys.copy()
    for row, found in enumerate(levels.tolist()):
        for slot, seed, level in zip(slots, seeds, found, strict=True):
            if level >= 0:
                rows[row, slot] = naive.mix(int(seed), int(hashes[level]))
    return rows


def log_level(text: bytes, missing) -> int | None:
    if text in (b"", *missing):
        return -1
    number = parse_key(text.removeprefix(b"-"))
    if number is None or text.startswith(b"-"):
        return None if number is None else -1
    # floor(3 log2 y) is the largest n with 2^n <= y^3: integers only.
    return ((number + 1) ** 3).bit_length() - 1


# out


def keys_of_texts(texts, seeds):
    return [naive.mix(seed, naive.xxh64(text, 0)) for text, seed in zip(texts, seeds, strict=True)]


def rows_text(heads, ids, opens, tags, counts, keys, words) -> bytes:
    """Lists of bytes for each line, line (or none), slot, slot; then numbers, keys and words."""
    entries = iter(zip(keys, words, strict=True))
    out = []
    for row, head in enumerate(heads):
        line = head + (b" '" + ids[row] if ids else b"")
        for slot, count in enumerate(counts[row]):
            line += opens[slot] if count else b""
            for key, word in (next(entries) for _ in range(count)):
                line += tags[slot] + str(int(key)).encode() + b":" + word
        out.append(line + b"\n")
    return b"".join(out)
