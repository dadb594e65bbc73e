"""The slow, obvious twin of training row at a time: one float64 number per coordinate."""

import itertools
import math


class Coordinate:
    """One weight and the state of its optimiser."""

    def __init__(self, block, start=0.0):
        self.block = block
        self.w = start
        self.z = self.n = 0.0

    def step(self, gradient):
        o = self.block
        g = gradient / (1 + 1 / o.count_scale) if o.count_scale else gradient
        if o.kind == "ftrl" and g:
            sigma = (math.sqrt(self.n + g * g) - math.sqrt(self.n)) / o.alpha
            self.z, self.n = self.z + g - sigma * self.w, self.n + g * g
            rate = 1 / ((o.beta + math.sqrt(self.n)) / o.alpha + o.l2)
            shrunk = max(abs(self.z) - o.l1, 0.0)
            self.w = -math.copysign(rate * shrunk, self.z)
        elif o.kind == "adagrad":
            g += o.l2 * self.w
            self.n += g * g
            self.w -= o.alpha * g / (o.beta + math.sqrt(self.n))
        elif o.kind == "sgd":
            self.w -= o.alpha * (g + o.l2 * self.w)


class Model:
    """LR (dim 0) or FM; ``start(key, factor)`` is the first value of a factor."""

    def __init__(self, dim, w, v, intercept, start):
        self.dim = dim
        self.blocks = (w, v)
        self.start = start
        self.intercept = Coordinate(intercept)
        self.keys: dict[int, list[Coordinate]] = {}

    def of(self, key):
        """w and then the factors of a key."""
        if key not in self.keys:
            w, v = self.blocks
            factors = [Coordinate(v, self.start(key, f)) for f in range(self.dim)]
            self.keys[key] = [Coordinate(w), *factors]
        return self.keys[key]

    def margin(self, row):
        held = {key: [c.w for c in self.of(key)] for key in row}
        z = self.intercept.w + sum(held[key][0] * x for key, x in row.items())
        for (a, x), (b, y) in itertools.combinations(row.items(), 2):
            z += sum(p * q for p, q in zip(held[a][1:], held[b][1:], strict=True)) * x * y
        return z


def train_rows(model, rows, labels):
    """Margins of ``rows`` (dicts: key -> value) as they came, and the sum of their log loss."""
    margins, loss_sum = [], 0.0
    for row, y in zip(rows, labels, strict=True):
        z = model.margin(row)
        p = 1 / (1 + math.exp(-z))
        before = {key: [c.w for c in model.of(key)] for key in row}
        for key, x in row.items():
            model.of(key)[0].step((p - y) * x)
            for f, factor in enumerate(model.of(key)[1:], start=1):
                rest = sum(before[other][f] * row[other] for other in row if other != key)
                factor.step((p - y) * x * rest)
        model.intercept.step(p - y)
        margins.append(z)
        loss_sum -= math.log(p if y else 1 - p)
    return margins, loss_sum
