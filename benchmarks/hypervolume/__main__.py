"""
Hypervolume of two noisy objectives: `python -m benchmarks.hypervolume --models ours,independent`.

Needs the environment of `make test-trieste`, and for `--models botorch` one with BoTorch. Each run
is one line of JSON in a file; runs that are there are not repeated, so that one may stop and go on.
`--page docs/bayesian_optimisation.md` writes the page and its picture from the file.
"""

import argparse
import json
import time
from itertools import product
from pathlib import Path
from typing import Any

from .problems import INITIAL, PROBLEMS, Experiment, front, hypervolume

STEPS = {1: 15, 4: 4}
"""How many times a loop asks, by the number of points that it asks for at once."""


def make_loop(model: str, *given: Any) -> Any:
    if model == "botorch":
        from .botorch_loop import BotorchLoop

        return BotorchLoop(*given)
    from .trieste_loops import TriesteLoop

    return TriesteLoop(model, *given)


def run(model: str, name: str, batch: int, seed: int) -> dict[str, Any]:
    """One optimisation; hypervolumes are those of values without noise."""
    problem, steps = PROBLEMS[name], STEPS[batch]
    experiment = Experiment(problem, seed, INITIAL + steps * batch)
    begin, cpu = time.perf_counter(), time.process_time()
    loop = make_loop(model, problem, batch, *experiment.start(), seed)
    evaluated, recommended = [], []
    for step in range(steps + 1):
        values = problem.objectives(experiment.X)
        chosen = front(loop.means(experiment.X))
        evaluated.append(hypervolume(values, problem.reference))
        recommended.append(hypervolume(values[chosen], problem.reference))
        if step < steps:
            X = loop.ask()
            loop.tell(X, experiment.observe(X))
    return {
        "model": model,
        "problem": name,
        "batch": batch,
        "seed": seed,
        "evaluated": evaluated,
        "recommended": recommended,
        "points": experiment.X.round(5).tolist(),
        "seconds": time.perf_counter() - begin,
        "cpu": time.process_time() - cpu,
    }


def run_or_failure(model: str, name: str, batch: int, seed: int) -> dict[str, Any]:
    """One optimisation, or what went wrong in it."""
    try:
        return run(model, name, batch, seed)
    except Exception as error:
        told = f"{type(error).__name__}: {error}".splitlines()[0][:200]
        return {"model": model, "problem": name, "batch": batch, "seed": seed, "failed": told}


def key(line: dict[str, Any]) -> tuple[Any, ...]:
    return line["model"], line["problem"], line["batch"], line["seed"]


def read(path: Path) -> list[dict[str, Any]]:
    """The runs that are done."""
    return [json.loads(line) for line in path.open()] if path.exists() else []


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", default="ours,independent", help="with commas between them")
    parser.add_argument("--problems", default=",".join(PROBLEMS), help="with commas between them")
    parser.add_argument("--batches", default="1,4", help="points per step, 1 or 4")
    parser.add_argument("--seeds", type=int, default=20, help="how many, default: 20")
    parser.add_argument("--first", type=int, default=0, help="the first of them, default: 0")
    parser.add_argument("--out", default="benchmark_output/hypervolume.jsonl")
    parser.add_argument("--page", help="write this page and its picture, run nothing")
    said = parser.parse_args()
    path = Path(said.out)
    path.parent.mkdir(parents=True, exist_ok=True)
    if said.page:
        from .report import write_page

        write_page(read(path), Path(said.page))
        return
    names = said.problems.split(","), said.models.split(",")
    seeds, batches = range(said.first, said.first + said.seeds), map(int, said.batches.split(","))
    for batch, seed, problem, model in product(batches, seeds, *names):
        if (model, problem, batch, seed) in map(key, read(path)):
            continue
        line = run_or_failure(model, problem, batch, seed)
        with path.open("a") as file:
            file.write(json.dumps(line) + "\n")
        told = line.get("failed") or f"{line['evaluated'][-1]:.4f}, {line['cpu']:.1f} s"
        print(*key(line), told, flush=True)


if __name__ == "__main__":
    main()
