"""Keras on an elastic job: `fit` is `model.fit` on workers that may come and go.

import elastic_launch.keras as elastic

history = elastic.fit(model, x, y, epochs=10, global_batch=256)
"""

from __future__ import annotations

from .trainer.joining import current_job
from .trainer.keras.fit import fit

__all__ = ["current_job", "fit"]
