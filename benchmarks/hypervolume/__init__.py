"""Bayesian optimisation of two noisy objectives, our model beside others."""
