"""A model as a folder of JSON and NumPy arrays, written and read without running code."""
