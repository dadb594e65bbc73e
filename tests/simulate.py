"""Plays jobs with standbys on the simulated cluster, seed by seed, while any process is killed.

    python -m tests.simulate FIRST LAST [--rows N] [--replicas 0|1]

The seeds are those of ``test_sim``'s crashes; in every fourth, nodes are asked to leave as well.
With ``--rows`` no job has more of them, which is what makes the long ones long. Prints one JSON
line; exit status 1 if any job ended otherwise than a job without faults.
"""

import argparse
import json
import sys
import traceback
from dataclasses import dataclass, field

from ctrps.ps.view import Placement
from tests.sim import Cluster, verify
from tests.simjob import crashing


@dataclass
class Played:
    """What has happened in all jobs."""

    jobs: int = 0
    messages: int = 0
    crashes: int = 0
    leaves: int = 0
    promotions: int = 0
    failed: list[int] = field(default_factory=list)


def play(seed: int, replicas: int, rows: int | None, played: Played) -> None:
    setup = crashing(seed, replicas, leaves=seed % 4 == 0, rows=rows)
    cluster = Cluster(setup).patient()
    played.jobs += 1
    try:
        scheduler = cluster.run()
        verify(cluster)
        assert scheduler.machine.trained_rows == setup.passes * len(setup.data.labels)
    except Exception:
        print(setup, traceback.format_exc(), sep="\n", file=sys.stderr, flush=True)
        played.failed.append(seed)
    played.messages += cluster.messages
    played.crashes += len(cluster.crashed)
    played.leaves += setup.faults.leaves


def count_promotions(played: Played) -> None:
    promoted = Placement.promoted

    def counted(self, pair):
        played.promotions += 1
        return promoted(self, pair)

    Placement.promoted = counted


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("first", type=int)
    parser.add_argument("last", type=int, help="behind the last one")
    parser.add_argument("--rows", type=int, help="most rows of a job")
    parser.add_argument("--replicas", type=int, default=1, choices=[0, 1])
    options = parser.parse_args()
    played = Played()
    count_promotions(played)
    for seed in range(options.first, options.last):
        play(seed, options.replicas, options.rows, played)
    print(json.dumps(vars(options) | vars(played)))
    return int(bool(played.failed))


if __name__ == "__main__":
    sys.exit(main())
