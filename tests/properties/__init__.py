"""Random data sets, what must hold after every fit, and a tool that looks for exceptions."""
