"""The slow, obvious twin of a table of rows: a dictionary of coordinates."""

from collections import Counter

from tests import naive, naive_fused


class Store:
    """Rows by key. There is nothing that could ``move``, and ``tails`` are where heads are."""

    def __init__(self, spec, seed):
        self.columns = [part for part in spec.parts for _ in range(part.width)]
        self.seed = seed
        self.rows: dict[int, list[naive_fused.Coordinate]] = {}

    def start(self, key):
        """What a new row begins with, column by column."""
        columns = enumerate(self.columns)
        return [
            naive_fused.Coordinate(
                part.optimizer.model_copy(update={"count_scale": 0.0}),
                part.init_scale * naive.initial(self.seed, key, j) if part.init_scale else 0.0,
            )
            for j, part in columns
        ]

    def find(self, keys):
        return [key in self.rows for key in keys]

    def insert(self, keys):
        for key in keys:
            self.rows.setdefault(key, self.start(key))

    def pull(self, keys, make):
        nothing = [0.0] * len(self.columns)
        return [
            [c.w for c in self.rows.get(key, self.start(key))]
            if make or key in self.rows
            else nothing
            for key in keys
        ]

    def push(self, keys, gradients, counts, step_rows):
        """One step; ``step_each`` coordinate has moved by its own formula (``moved``)."""
        self.insert(keys)
        for key, gradient, count in zip(keys, gradients, counts, strict=True):
            for part, coordinate, g in zip(self.columns, self.rows[key], gradient, strict=True):
                o = part.optimizer
                if o.kind == "count":
                    coordinate.w += count
                    continue
                scale = 1 / step_rows if o.kind == "sgd" else 1.0
                coordinate.step(naive.scaled(g, count, scale, o.count_scale))

    def held(self):
        return sorted(self.rows)

    def saved_rows(self):
        """Per key all weights, then the states of each part; as ``copy_rows`` saves them."""
        parts = list(dict.fromkeys(self.columns))
        found = {}
        for key, row in self.rows.items():
            saved = [c.w for c in row]
            for part in parts:
                own = [c for p, c in zip(self.columns, row, strict=True) if p is part]
                if part.optimizer.kind == "ftrl":
                    saved += [c.z for c in own]
                if part.optimizer.kind in ("ftrl", "adagrad"):
                    saved += [c.n for c in own]
            found[key] = saved
        return found


def count_segments(keys, bits):
    found = Counter(naive.partition_of(keys, bits))
    return [found[number] for number in range(1 << bits)]
