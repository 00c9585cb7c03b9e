"""For people with a table of data: the scikit-learn estimator, files, evaluation."""
