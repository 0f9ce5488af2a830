"""The state and the callbacks by the name under which scripts import them."""

from .._keras.elastic import CommitStateCallback, KerasState, UpdateBatchStateCallback, UpdateEpochStateCallback, run

__all__ = ["CommitStateCallback", "KerasState", "UpdateBatchStateCallback", "UpdateEpochStateCallback", "run"]
