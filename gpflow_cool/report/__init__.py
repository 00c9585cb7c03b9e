"""The report: one HTML page about a fitted estimator, with sliders that move its predictions."""
