"""What a process does to have room for many agents."""

from __future__ import annotations

import subprocess
import sys

LIMITS = """
import resource
from elastic_launch.rendezvous.room import allow_many_connections
_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))
allow_many_connections()
assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
"""
COLLECTIONS = """
import gc
from elastic_launch.rendezvous.room import keep_collections_short
keep_collections_short()
assert gc.isenabled() and gc.get_freeze_count() > 1000
class Ring: pass
ring = Ring()
ring.ring = ring
import weakref
watched = weakref.ref(ring)
del ring
assert watched() is not None
made = [[n] for n in range(50_000)]
assert watched() is None, "what goes in cycles after that is still collected"
"""


def test_as_many_files_may_be_open_as_the_system_allows() -> None:
    subprocess.run([sys.executable, "-c", LIMITS], check=True, timeout=60)


def test_what_is_loaded_is_not_looked_at_again_and_the_rest_is() -> None:
    subprocess.run([sys.executable, "-c", COLLECTIONS], check=True, timeout=60)
