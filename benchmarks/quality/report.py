"""Tables of results, and how the results of two versions differ."""

from collections import defaultdict
from typing import Any

import numpy as np

Record = dict[str, Any]
Key = tuple[str, str, int, str]

ABOUT = ("part", "case", "seed", "method", "error")
LARGEST = 10
HIGHER_IS_BETTER = ("coverage",)


def metrics_of(record: Record) -> list[str]:
    return [name for name in record if name not in ABOUT]


def by(records: list[Record], *names: str) -> dict[tuple, list[Record]]:
    """The records with the same values of some fields."""
    groups = defaultdict(list)
    for record in records:
        groups[tuple(record[name] for name in names)].append(record)
    return dict(groups)


def line(*cells: Any) -> str:
    """A row of a Markdown table, numbers with four digits."""
    texts = [f"{cell:.4g}" if isinstance(cell, float) else str(cell) for cell in cells]
    return f"| {' | '.join(texts)} |"


def head(*titles: str) -> str:
    return f"{line(*titles)}\n|{' --- |' * len(titles)}"


# One version --------------------------------------------------------------------------------------


def print_tables(results: Record) -> None:
    """Means per case and method; medians over all cases where each is another one."""
    for (part,), records in by(results["records"], "part").items():
        print(f"\n{part}, version {results['version']} {results['notes']}\n")
        kept = [record for record in records if "error" not in record]
        if part == "random":
            print_summary(kept)
        elif kept:
            print_means(kept)
        for record in records:
            if "error" in record:
                print("error:", *(record[name] for name in ABOUT[1:]))


def print_means(records: list[Record]) -> None:
    """One row per case and method."""
    metrics = metrics_of(records[0])
    print(head("case", "method", "draws", *metrics))
    for (case, method), group in by(records, "case", "method").items():
        means = [
            float(np.mean([r[name] for r in group])) if name in group[0] else "" for name in metrics
        ]
        print(line(case, method, len(group), *means))


def print_summary(records: list[Record]) -> None:
    """One row per method and metric: median, 5%, 95% and the largest value."""
    print(head("method", "metric", "sets", "5%", "median", "95%", "largest"))
    for (method,), group in by(records, "method").items():
        for name in metrics_of(group[0]):
            values = np.array([record[name] for record in group])
            print(line(method, name, len(values), *quantiles(values), float(values.max())))


def quantiles(values: np.ndarray) -> list[float]:
    return [float(q) for q in np.quantile(values, [0.05, 0.5, 0.95])]


# Two versions -------------------------------------------------------------------------------------


def print_comparison(new: Record, old: Record, pairs: dict[str, str]) -> None:
    """
    How all metrics differ, new less old, over the records that both have.

    :param pairs: Methods of the new version that are compared with another method of the old one.
    """
    print(f"\nversion {new['version']} less version {old['version']} {old['notes']}")
    theirs = {key_of(record, record["method"]): record for record in old["records"]}
    found = [
        (record, theirs.get(key_of(record, pairs.get(record["method"], record["method"]))))
        for record in new["records"]
    ]
    both = [record | {"old": other} for record, other in found if other is not None]
    print(f"{len(both)} pairs; {len(found) - len(both)} results without a partner")
    print_errors(both)
    fine = [record for record in both if "error" not in record and "error" not in record["old"]]
    for (part, method), group in by(fine, "part", "method").items():
        print(f"\n{part}, {method} less {group[0]['old']['method']}: {len(group)} pairs\n")
        print_differences(group)


def key_of(record: Record, method: str) -> Key:
    """What must be the same in a pair."""
    return record["part"], record["case"], record["seed"], method


def print_errors(both: list[Record]) -> None:
    """Which cases fail in one version only."""
    for record in both:
        mine, other = record.get("error"), record["old"].get("error")
        if bool(mine) != bool(other):
            when = "fails now:" if mine else "failed before:"
            print(when, *key_of(record, record["method"]), mine or other)


def print_differences(group: list[Record]) -> None:
    """Distribution of the differences, then the cases that lost most, for every metric."""
    metrics = [name for name in metrics_of(group[0]) if name not in ("old", "seconds")]
    print(head("metric", "5%", "median", "95%", "worst"))
    lost = {}
    for name in metrics:
        change = np.array([record[name] - record["old"][name] for record in group])
        order = np.argsort(change if name in HIGHER_IS_BETTER else -change)[:LARGEST]
        print(line(name, *quantiles(change), float(change[order[0]])))
        lost[name] = [(group[n], change[n]) for n in order if change[n] != 0.0]
    ratios = [record["seconds"] / max(record["old"]["seconds"], 1e-3) for record in group]
    print(
        f"\nseconds: {np.median(ratios):.2f} times the old (median), which means something only if"
        " both are of one machine and run\n"
    )
    for name, cases in lost.items():
        told = [f"{r['case']} seed {r['seed']}: {change:+.4g}" for r, change in cases]
        print(f"worst {name}: {'; '.join(told) or 'none'}")
