"""Slow, obvious twins of windows over past events: every event is looked at each time."""

import datetime
from collections import Counter

from tests import naive
from tests import naive_data2 as naive_tables

EPOCH = datetime.date(1970, 1, 1)


def day_of(time, zone):
    return datetime.datetime.fromtimestamp(time, zone).date()


def in_span(span, event, time, delay_s, zone):
    """Whether an event is in the span of an impression at ``time``, and known then."""
    if event >= time - delay_s:
        return False
    if span.unit == "hours":
        return event >= time - span.length * 3600
    ago = (day_of(time, zone) - day_of(event, zone)).days
    return ago == 0 if span.length == 0 else 1 <= ago <= span.length


def fits(event, where):
    return all(event[column] in values for column, values in where.items())


def take(window, events):
    """The text of a window of events, which are (time, fields)."""
    found = [fields for _, fields in events if fits(fields, window.where)]
    if window.take == "count":
        return str(len(found))
    if window.take == "rate":
        of = len(found) + window.plus
        return put_rate(sum(fits(fields, window.hit) for fields in found), of)
    ordered = sorted((time, fields[window.of].encode()) for time, fields in events
                     if fits(fields, window.where) and fields[window.of])  # fmt: skip
    values = [value.decode() for _, value in ordered]
    if window.take == "last":
        return values[-1] if values else ""
    if window.take == "distinct":
        return ",".join(dict.fromkeys(values))
    counts = Counter(values)
    best = sorted(counts, key=lambda text: (counts[text], text.encode()), reverse=True)
    return ",".join(best[: window.most])


def windows(plan, row, time, past):
    """Every window of one impression.

    Parameters
    ----------
    row : dict[str, str]
        The impression's own and joined columns.
    past : dict[str, list[(int, dict)]]
        All events of each source: time and columns.
    """
    made = {}
    for name, window in plan.windows.items():
        source = plan.events.get(window.events)
        renamed = source.keys if source else {}
        delay_s = (source or plan.impressions).delay_s
        seen = [
            (at, fields)
            for at, fields in past[window.events]
            if in_span(window.span, at, time, delay_s, plan.zone)
            and all(fields[renamed.get(key, key)] == row[key] for key in window.by)
        ]
        made[name] = take(window, seen)
    return made


def samples(plan, tables, asked=None):
    """Columns of every impression, or of those whose numbers are ``asked``, by number.

    ``tables`` holds the text of each table by name.
    """
    header, rows = naive_tables.read_table(tables[plan.impressions.table])
    sides = [(join, *naive_tables.read_table(tables[join.table])) for join in plan.joins]
    joined = [naive_tables.join_row(plan, header, row, sides) for row in rows]
    times = [int(row[plan.impressions.time]) for row in joined]
    past = {"impressions": list(zip(times, joined, strict=True))}
    for name, events in plan.events.items():
        names, found = naive_tables.read_table(tables[events.table])
        fields = [dict(zip(names, row, strict=True)) for row in found]
        past[name] = [(int(row[events.time]), row) for row in fields]
    return {
        number: joined[number] | windows(plan, joined[number], times[number], past)
        for number in (range(len(rows)) if asked is None else asked)
    }


# kernels


def radix_order(keys):
    """Numbers of the keys in ascending order."""
    return sorted(range(len(keys)), key=lambda i: keys[i])


def mix_pairs(seeds, hashes):
    return [naive.mix(seed, h) for seed, h in zip(seeds, hashes, strict=True)]


def text_words(texts, skip):
    """Eight bytes of each text as a number."""
    return [int.from_bytes(text[skip : skip + 8].ljust(8, b"\0"), "big") for text in texts]


def sort_ties(ids, times, values):
    """The values in order of (id, time, value)."""
    return [value for *_, value in sorted(zip(ids, times, values, strict=True))]


def ranges(ids, since, until, events):
    """Per impression the numbers of the events (id, time) in range."""
    return [
        [i for i, (key, time) in enumerate(events) if key == mine and first <= time < last]
        for mine, first, last in zip(ids, since, until, strict=True)
    ]


def short_texts(texts):
    """A word of each text: its bytes and how many they are; all bits where they are too many."""
    return [
        int.from_bytes(text.ljust(7, b"\0") + bytes([len(text)]), "little")
        if len(text) <= 7
        else 2**64 - 1
        for text in texts
    ]


def top_lists(values, texts, most):
    """The list of one range of values; they are ranks."""
    counts = Counter(value for value in values if value)
    best = sorted(counts, key=lambda rank: (counts[rank], rank), reverse=True)
    return b",".join(texts[rank] for rank in best[:most])


def distinct_lists(values, texts):
    """The list of one range of values."""
    return b",".join(texts[rank] for rank in dict.fromkeys(values) if rank)


def put_rate(hits, of):
    """Twelve decimals, rounded half up."""
    if not of:
        return ""
    digits = f"{(2 * hits * 10**12 + of) // (2 * of):013d}"
    return f"{digits[:-12]}.{digits[-12:]}".rstrip("0").rstrip(".")


def put_numbers(counts, hits, plus):
    """Texts of counts, or of rates."""
    if plus < 0:
        return list(map(str, counts))
    return [put_rate(hit, count + plus) for hit, count in zip(hits, counts, strict=True)]


def copy_text(data, start, end, out, to):
    """``out`` up to ``to`` and the text behind it."""
    return out[:to] + data[start:end]


def rows_text(rows, closes):
    """Runs of rows of fields."""
    run_of = [sum(closes[:c]) for c in range(len(closes))]
    texts = []
    for row in rows:
        runs = [b""] * sum(closes)
        for c, field in enumerate(row):
            runs[run_of[c]] += field + b"\t"
        texts.append(runs)
    return texts


def run_changes(rows, places, closes, before):
    """Which runs are not those of the row before, and their bytes.

    ``places`` says where the fields of each row lie: equal fields are no reason to share them.
    """
    run_of = [sum(closes[:c]) for c in range(len(closes))]
    changed, sizes = [], []
    for runs, (begins, stops), other in zip(rows_text(rows, closes), places, before, strict=True):
        same = [other >= 0] * sum(closes)
        for c, place in enumerate(zip(begins, stops, strict=True)):
            there = places[max(other, 0)]
            same[run_of[c]] &= place == (there[0][c], there[1][c])
        changed.append([not one for one in same])
        sizes.append(sum(len(run) for run, one in zip(runs, same, strict=True) if not one))
    return changed, sizes


def place_runs(rows, starts, ends, mine):
    """Borders in the text of the runs ``mine`` of ``rows``, by row and run."""
    return {
        (row, run): (starts[i][j], ends[i][j])
        for i, row in enumerate(rows)
        for j, run in enumerate(mine)
    }


def last_texts(values):
    return next((value for value in reversed(values) if value), 0)


def fitting(events, bit):
    """Key, time and number of the events, with masks before them, that have the bit."""
    return [tuple(rest) for mask, *rest in events if mask & bit]


def rows_size(rows):
    return [sum(len(field) + 1 for field in row) for row in rows]


def field_runs(rows, fields):
    """Each row, a text with one byte behind its last field, in runs of so many fields."""
    found = []
    for row in rows:
        parts = row[:-1].split(b"\t")
        pieces, at = [], 0
        for count in fields:
            pieces.append(b"\t".join(parts[at : at + count]) + b"\t")
            at += count
        pieces[-1] = pieces[-1][:-1] + row[-1:]
        found.append(pieces)
    return found


def join_runs(rows, end):
    """Rows of runs as one text; the last byte of each is replaced."""
    lines = [b"".join(run[:-1] + b"\t" for run in row)[:-1] + end for row in rows]
    return b"".join(lines)
