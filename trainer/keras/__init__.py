"""`model.fit` of Keras on an elastic job: what is computed, exchanged, agreed and applied in each step, and who is told of it."""
