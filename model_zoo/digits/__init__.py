"""Handwritten digits: a small convolutional network on scikit-learn's copy of real data."""
