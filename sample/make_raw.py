"""Makes the tables in `sample/raw`, or others like them: `python sample/make_raw.py --help`."""

import argparse
import json
from pathlib import Path

from ctrps.data.synthetic import generate

parser = argparse.ArgumentParser(description="Raw advertising logs in the public schema.")
parser.add_argument("--out", type=Path, default=Path(__file__).parent / "raw")
parser.add_argument("--rows", type=int, default=60_000, help="impressions, an eighth for the test")
parser.add_argument("--users", type=int, default=8_000)
parser.add_argument("--ads", type=int, default=1_500)
parser.add_argument("--behaviors", type=int, default=0, help="rows of behavior_log; 0: none")
parser.add_argument("--seed", type=int, default=1)
parser.add_argument("--plain", action="store_true", help="write .csv in place of .csv.gz")

if __name__ == "__main__":
    options = vars(parser.parse_args())
    truth = generate(compress=not options.pop("plain"), **options)
    print(json.dumps(truth, indent=1))
