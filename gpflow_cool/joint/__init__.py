"""The joint model given K, C and Sigma: evidence, prediction, leave-one-out, missing targets."""
