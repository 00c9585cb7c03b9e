"""This package beside its peers: `python -m benchmarks.peers --help`."""
