"""A model of the zoo, with a journal."""

from __future__ import annotations

import argparse
import importlib

from telling import Journalling, add_options


def main() -> None:
    parser = argparse.ArgumentParser()
    add_options(parser)
    parser.add_argument("--model", required=True)
    options = parser.parse_args()
    told = Journalling(options)
    script = importlib.import_module(f"elastic_launch.model_zoo.{options.model}.train")
    history = script.train(told.epochs, script.GLOBAL_BATCH, script.LEARNING_RATE, 0, [told])
    told.end(history)


if __name__ == "__main__":
    main()
