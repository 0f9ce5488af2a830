"""The process of a worker that imports horovod: `-m elastic_launch.horovod.running [--starts-again] [--module] SCRIPT ...`.

With `--starts-again` the script has nothing that is called again when a worker is lost, so its process is started afresh.
"""

from __future__ import annotations

import sys

from ..trainer.main import main
from .standing_in import stand_in

STARTS_AGAIN = "--starts-again"

if __name__ == "__main__":
    if sys.argv[1:2] == [STARTS_AGAIN]:
        from .world import let_scripts_start_again

        sys.argv.pop(1)
        let_scripts_start_again()
    stand_in()
    main()
