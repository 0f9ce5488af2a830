"""A script that never joins its job."""

from __future__ import annotations

import argparse
import sys
import time

parser = argparse.ArgumentParser()
parser.add_argument("--journal")
parser.add_argument("--sleep", type=float, default=0.0)
parser.add_argument("--code", type=int, default=0)
options = parser.parse_args()
print("nothing to train", flush=True)
time.sleep(options.sleep)
sys.exit(options.code)
