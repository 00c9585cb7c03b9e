"""The chain of conditional one-output likelihoods: two parameters per task, one shared kernel."""
