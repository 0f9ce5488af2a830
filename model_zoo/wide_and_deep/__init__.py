"""A wide-and-deep model in Keras on scikit-learn's copy of the Wisconsin breast cancer table."""
