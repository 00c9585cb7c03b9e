"""Training: `fit` for every model, and the optimisers behind it."""
