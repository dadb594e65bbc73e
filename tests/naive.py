"""Slow, obvious twins of the kernels, by the kernel's name.

They are written from the definition and not from the kernel: plain Python integers, dicts and
lists, float64 or exact decimals, one row and one key at a time. They return what the kernel
writes.
"""

import decimal
import math

import numpy as np

M = 2**64
P1, P2, P3 = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9
P4, P5 = 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5

# bfloat16


def to_bfloat16(x):
    """The nearest number with 8 bits of precision and the exponents of float32, as upper half."""
    bits = int(np.float32(x).view(np.uint32))
    if math.isnan(x):
        return bits >> 16 | 0x40
    below = bits >> 16
    low, high = from_bfloat16(below), from_bfloat16(below + 1)
    # Beyond the largest one, infinity stands where the next one would.
    high = math.copysign(2.0**128, x) if math.isinf(high) else high
    if math.isinf(x) or abs(x - low) < abs(high - x):
        return below
    return below + 1 if abs(high - x) < abs(x - low) else below + below % 2


def from_bfloat16(half):
    return float(np.uint32(half << 16).view(np.float32))


# keys


def rotate(x, bits):
    return (x << bits | x >> (64 - bits)) % M


def xxh64_round(lane, word):
    return rotate((lane + word * P2) % M, 31) * P1 % M


def xxh64(data: bytes, seed: int) -> int:
    """The steps of the specification, in its order."""
    rest = data
    if len(data) >= 32:
        lanes = [(seed + P1 + P2) % M, (seed + P2) % M, seed, (seed - P1) % M]
        while len(rest) >= 32:
            words = [int.from_bytes(rest[i : i + 8], "little") for i in (0, 8, 16, 24)]
            lanes = [xxh64_round(lane, word) for lane, word in zip(lanes, words, strict=True)]
            rest = rest[32:]
        h = sum(rotate(lane, b) for lane, b in zip(lanes, (1, 7, 12, 18), strict=True)) % M
        for lane in lanes:
            h = ((h ^ xxh64_round(0, lane)) * P1 + P4) % M
    else:
        h = (seed + P5) % M
    h = (h + len(data)) % M
    while len(rest) >= 8:
        h ^= xxh64_round(0, int.from_bytes(rest[:8], "little"))
        h, rest = (rotate(h, 27) * P1 + P4) % M, rest[8:]
    if len(rest) >= 4:
        h ^= int.from_bytes(rest[:4], "little") * P1 % M
        h, rest = (rotate(h, 23) * P2 + P3) % M, rest[4:]
    for byte in rest:
        h = rotate(h ^ byte * P5 % M, 11) * P1 % M
    h = (h ^ h >> 33) * P2 % M
    h = (h ^ h >> 29) * P3 % M
    return h ^ h >> 32


def fmix64(h):
    h = (h ^ h >> 33) * 0xFF51AFD7ED558CCD % M
    h = (h ^ h >> 33) * 0xC4CEB9FE1A85EC53 % M
    return h ^ h >> 33


def mix(seed: int, h: int) -> int:
    return fmix64((seed + h * 0x9E3779B97F4A7C15) % M)


def mix_all(seed: int, hashes) -> list[int]:
    return [mix(seed, int(h)) for h in hashes]


def spread(key: int) -> int:
    return fmix64(key ^ 0x243F6A8885A308D3)


def finite(numbers: list[float]) -> bool:
    return all(math.isfinite(x) for x in numbers)


def positive(counts: list[int]) -> bool:
    return min(counts, default=1) > 0


def sketch_add(keys: list[int], registers: int) -> list[int]:
    """HyperLogLog: per first bits of the placement, the place of the first one bit after them."""
    bits = registers.bit_length() - 1
    found = [0] * registers
    for key in keys:
        place = f"{spread(key):064b}"
        at, rest = int(place[:bits], 2), place[bits:] + "1"
        found[at] = max(found[at], rest.index("1") + 1)
    return found


def partition_of(keys, bits):
    return [spread(int(key)) >> (64 - bits) for key in keys]


def grouped(keys, bits):
    """(order, starts): a stable sort by partition."""
    partitions = partition_of(keys, bits)
    order = sorted(range(len(keys)), key=lambda i: partitions[i])
    starts = [sum(p < border for p in partitions) for border in range(2**bits + 1)]
    return order, starts


def initial(seed: int, key: int, j: int) -> float:
    h = mix(mix(seed, key), j)
    uniforms = [h >> shift & 0xFFFF for shift in (0, 16, 32, 48)]
    # Variance of a uniform integer 0..n-1 is (n^2 - 1) / 12.
    return (sum(uniforms) - 4 * 65535 / 2) / math.sqrt(4 * (65536**2 - 1) / 12)


def index_build(keys):
    return {int(key): row for row, key in enumerate(keys)}


def index_find(held: dict, keys):
    return [held.get(int(key), -1) for key in keys]


def index_insert(held: dict, keys, used):
    """(rows, positions of new keys); ``held`` grows."""
    new = []
    for i, key in enumerate(int(key) for key in keys):
        if key not in held:
            held[key] = used + len(new)
            new.append(i)
    return index_find(held, keys), new


# csr


def dedup_keys(keys):
    """(distinct keys by first touch, number of each key among them)."""
    unique = list(dict.fromkeys(keys.tolist()))
    return unique, [unique.index(key) for key in keys.tolist()]


def take_numbers(numbers, local):
    return [numbers[n] for n in local]


def drop_numbers(index, counts, numbers):
    """Numbers and counts after taking out those of keys whose new number is -1."""
    left, at = [], 0
    counts = [list(row) for row in counts]
    for row in counts:
        for slot, n in enumerate(row):
            kept = [numbers[key] for key in index[at : at + n] if numbers[key] >= 0]
            left += kept
            row[slot] = len(kept)
            at += n
    return left, counts


def partition_starts(keys, bits):
    """Borders of the partitions, or None if keys are not grouped by them."""
    partitions = partition_of(keys, bits)
    if partitions != sorted(partitions):
        return None
    return [sum(found < p for found in partitions) for p in range((1 << bits) + 1)]


def row_starts(counts):
    return [int(counts[:r].sum()) for r in range(len(counts) + 1)]


def row_entries(row, index, counts, values, dense, dense_at, mean):
    """Entries (key, value) of a block's row as they stand, repeats included."""
    at = int(counts[:row].sum())
    entries = []
    for n in counts[row].tolist():
        for t in range(at, at + n):
            explicit = values[t] if len(values) else np.float32(1)
            entries.append((int(index[t]), np.float32(1 / n) if mean else explicit))
        at += n
    return entries + [(dense_at + j, x) for j, x in enumerate(dense[row]) if x != 0]


def slot_weights(counts):
    return [np.float32(1 / n) for n in counts.reshape(-1).tolist() for _ in range(n)]


def mark_rows(index, counts, values, dense, dense_at, order, mean):
    """The numbers of some rows, and how many entries these have, repeats included."""
    block = (index, counts, values, dense, dense_at, mean)
    entries = [entry for row in order for entry in row_entries(row, *block)]
    return {number for number, _ in entries}, len(entries)


def take_rows(index, counts, values, dense, dense_at, order, mean):
    """A list of dicts: key -> value of each row."""
    taken = []
    for row in order:
        merged: dict[int, np.float32] = {}
        for key, value in row_entries(row, index, counts, values, dense, dense_at, mean):
            merged[key] = merged[key] + value if key in merged else value
        taken.append(merged)
    return taken


def rows_of(indptr, index, values):
    """The rows of a CSR as lists of (key, value)."""
    return [
        [(int(index[i]), float(values[i])) for i in range(indptr[r], indptr[r + 1])]
        for r in range(len(indptr) - 1)
    ]


def take_keys(keys, borders, taken):
    """Keys of the rows of ``take_rows``, borders of their partitions, and rows that hold each."""
    numbers = sorted({number for row in taken for number in row})
    counts = [sum(number in row for row in taken) for number in numbers]
    starts = [sum(number < border for number in numbers) for border in borders]
    return [int(keys[number]) for number in numbers], starts, counts


def fold(pushes):
    """key -> (gradient, count) after folding [(keys, gradients, counts), ...] in order."""
    sums: dict[int, tuple[np.ndarray, int]] = {}
    for keys, gradients, counts in pushes:
        for key, g, c in zip(keys.tolist(), gradients, counts.tolist(), strict=True):
            sums[key] = (sums[key][0] + g, sums[key][1] + c) if key in sums else (g, c)
    return sums


# losses

PRECISE = decimal.Context(prec=60)


def sigmoid(z: float) -> float:
    one = decimal.Decimal(1)
    return float(PRECISE.divide(one, one + PRECISE.exp(decimal.Decimal(-z))))


def logloss(z: float, y: float) -> float:
    one = decimal.Decimal(1)
    return float(PRECISE.ln(PRECISE.add(one, PRECISE.exp(decimal.Decimal(-z if y else z)))))


def sigmoid_rows(margins):
    return [sigmoid(float(z)) for z in margins]


def logloss_residual(margins, labels):
    """(residuals, loss)."""
    pairs = [(float(z), float(y)) for z, y in zip(margins, labels, strict=True)]
    return [sigmoid(z) - y for z, y in pairs], sum(logloss(z, y) for z, y in pairs)


def ordered_sum(numbers):
    return math.fsum(numbers.tolist())


def lr_forward(rows, w, bias):
    return np.array([bias + sum(w[key, 0] * x for key, x in row) for row in rows])


def fm_forward(rows, wv, bias):
    """Every pair of entries, one by one."""
    margins = lr_forward(rows, wv, bias)
    for r, row in enumerate(rows):
        for i, (key, x) in enumerate(row):
            for other, y in row[i + 1 :]:
                margins[r] += wv[key, 1:] @ wv[other, 1:] * x * y
    return margins


def loss(forward, rows, weights, bias, labels):
    margins = forward(rows, weights, bias)
    return sum(np.logaddexp(0, -z if y else z) for z, y in zip(margins, labels, strict=True))


def gradient(forward, rows, weights, bias, labels, step=1e-5):
    """Central differences of the loss by every weight."""
    g = np.zeros_like(weights)
    for place in np.ndindex(weights.shape):
        for sign in (1, -1):
            moved = weights.copy()
            moved[place] += sign * step
            g[place] += sign * loss(forward, rows, moved, bias, labels) / (2 * step)
    return g


def lr_gradient(rows, w, bias, labels):
    return gradient(lr_forward, rows, w, bias, labels)


def fm_gradient(rows, wv, bias, labels):
    return gradient(fm_forward, rows, wv, bias, labels)


# optimizers: gradients of one coordinate, in order -> its weight after each of them


def scaled(g, count, scale, count_scale):
    return g * scale / (1 + count / count_scale) if count_scale else g * scale


def clip_rows(gradients, factors, most, longest):
    """Rows of sums such that each, times the factors of its columns, is within both limits."""
    clipped = []
    for sums, by in zip(gradients.tolist(), factors, strict=True):
        g = [max(-most, min(most, s * f)) for s, f in zip(sums, by, strict=True)]
        length = math.hypot(*g)
        shrink = longest / length if length > longest else 1
        clipped.append([x * shrink / f for x, f in zip(g, by, strict=True)])
    return clipped


def compensate(gradients, counts, now, then, rate):
    """Each gradient of a mean over its rows moves by rate * g * g * (now - then)."""
    c = np.asarray(counts, np.float64).reshape(-1, 1)
    mean = np.asarray(gradients, np.float64) / c
    moved = np.asarray(now, np.float64) - np.asarray(then, np.float64)
    return c * (mean + rate * mean * mean * moved)


def square_sum(numbers):
    return math.fsum(x * x for x in numbers.tolist())


def ftrl(gradients, alpha, beta, l1, l2):
    """Algorithm 1 of McMahan et al., KDD 2013: the weight is found from z and n when needed."""

    def weight(z, n):
        if abs(z) <= l1:
            return 0.0
        return -1 / ((beta + math.sqrt(n)) / alpha + l2) * (z - math.copysign(1, z) * l1)

    z = n = 0.0
    weights = []
    for g in gradients:
        sigma = (math.sqrt(n + g * g) - math.sqrt(n)) / alpha
        z, n = z + g - sigma * weight(z, n), n + g * g
        weights.append(weight(z, n))
    return weights


def adagrad(gradients, alpha, beta, l2, w=0.0):
    squares = []
    weights = []
    for g in gradients:
        total = g + l2 * w
        squares.append(total**2)
        w -= alpha * total / (beta + math.sqrt(sum(squares)))
        weights.append(w)
    return weights


def sgd(gradients, alpha, l2, w=0.0):
    weights = []
    for g in gradients:
        w = (1 - alpha * l2) * w - alpha * g
        weights.append(w)
    return weights


def count(rows_with_key, w=0):
    return w + sum(rows_with_key)


# metrics


def doubled_wins(scores, labels):
    clicks = [s for s, y in zip(scores, labels, strict=True) if y]
    others = [s for s, y in zip(scores, labels, strict=True) if not y]
    return sum(2 * (a > b) + (a == b) for a in clicks for b in others), len(clicks)


def auc(scores, labels):
    wins, clicks = doubled_wins(scores, labels)
    pairs = clicks * (len(labels) - clicks)
    return wins / 2 / pairs if pairs else math.nan


def grouped_wins(groups, scores, labels):
    """(sum of rows times AUC, rows, used, skipped)."""
    figures = []
    for group in np.unique(groups):
        chosen = groups == group
        figures.append((auc(scores[chosen], labels[chosen]), int(chosen.sum())))
    used = [(figure, n) for figure, n in figures if not math.isnan(figure)]
    total, rows = sum(f * n for f, n in used), sum(n for _, n in used)
    return total, rows, len(used), len(figures) - len(used)


def histogram_add(scores, labels, bins):
    hist = np.zeros((bins, 2), np.int64)
    for score, label in zip(scores, labels, strict=True):
        hist[min(max(math.floor(score * bins), 0), bins - 1), int(label > 0)] += 1
    return hist


def logloss_sum(scores, labels):
    clipped = [min(max(p, 1e-15), 1 - 1e-15) for p in scores.tolist()]
    pairs = zip(clipped, labels, strict=True)
    return math.fsum(-math.log(p) if y else -math.log1p(-p) for p, y in pairs)


def contributions(entries):
    """Of entries (w, v, x) of a row: w x, and half of each pair that an entry is in."""
    found = []
    for i, (w, v, x) in enumerate(entries):
        pairs = sum(
            sum(float(a) * float(b) for a, b in zip(v, other, strict=True)) * x * y
            for j, (_, other, y) in enumerate(entries)
            if j != i
        )
        found.append(float(w) * x + pairs / 2)
    return found
