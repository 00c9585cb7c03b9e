"""`python -m gpflow_cool` is the command line `gpflow-cool`."""

from .cli.commands import main

if __name__ == "__main__":
    main(prog_name="gpflow-cool")
