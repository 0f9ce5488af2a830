"""The process of a worker that imports horovod: `python -m elastic_launch.horovod.running [--module] SCRIPT [ARGUMENTS]`."""

from __future__ import annotations

from ..trainer.main import main
from .standing_in import stand_in

if __name__ == "__main__":
    stand_in()
    main()
