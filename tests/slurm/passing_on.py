"""Becomes the command that is given: `Command` starts Python modules, and srun is none."""

import os
import sys

if __name__ == "__main__":
    os.execv(sys.argv[1], sys.argv[1:])
