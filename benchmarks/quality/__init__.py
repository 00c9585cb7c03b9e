"""How good a version is, judged by distributions: `python -m benchmarks.quality --help`."""
