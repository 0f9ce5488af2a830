"""What knows TensorFlow: a job's gradients, variables and steps in its terms."""
