"""Handwritten digits in Keras: the same data as in `digits`, trained by `elastic_launch.keras.fit`."""
