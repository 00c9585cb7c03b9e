"""The command line `gpflow-cool`; it holds no mathematics."""
