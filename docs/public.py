"""
The public names, and the pages of the API reference: one per name, written when the site is built.

A new name of `gpflow_cool.__all__` gets its page by itself. A public module says what it offers in
`__all__`, or here.
"""

import inspect
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import gpflow_cool

MODULES = {
    "gpflow_cool": "Models, and what belongs to them.",
    "gpflow_cool.metrics": "How good predictions are.",
    "gpflow_cool.plotting": "Figures of matrices, predictions and maps.",
    "gpflow_cool.grid": "Rows that are all combinations of the points of some axes.",
    "gpflow_cool.callbacks": "What can be done after each step of a fit.",
    "gpflow_cool.monitoring": "TensorBoard.",
    "gpflow_cool.coregion": "To and from GPflow's coregionalization layout.",
    "gpflow_cool.trieste": "Bayesian optimisation with Trieste.",
    "gpflow_cool.datasets": "The paper's synthetic data, and a reader of its real data.",
    "gpflow_cool.studies": "The paper's experiments.",
}

NAMES = {
    "gpflow_cool.metrics": "rmse mean_rmse rrmse arrmse nlpd joint_nlpd known_log_densities"
    " coverage nominal_coverage",
    "gpflow_cool.callbacks": "Callback Checkpoint ProgressBar load_checkpoint",
    "gpflow_cool.monitoring": "TensorBoardCallback tensorboard_tasks",
    "gpflow_cool.coregion": "from_coregion predict_coregion to_coregion_gpr",
    "gpflow_cool.datasets": "clustered_two_task uniform_two_task low_rank_synthetic load_mulan"
    " read_arff",
}
"""Of modules that have no `__all__`."""

FIRST = "CoolMTGP CoolMTGPRegressor SparseCoolMTGP KroneckerMTGP choose_kernel load".split()
"""Of `gpflow_cool`; the others follow in their order."""

RESULTS = (
    "gpflow_cool.joint.base_posterior.JointPosterior",
    "gpflow_cool.joint.functions.SampledFunctions",
    "gpflow_cool.joint.leave_one_out.LeaveOneOut",
    "gpflow_cool.joint.conditioning.Imputation",
    "gpflow_cool.selection.choice.KernelChoice",
    "gpflow_cool.training.run.History",
)
"""What methods of the models return; nobody imports them."""

INTERNAL = set(
    """
    append centred_completions centred_targets chunk_rows completions expectation_maximisation
    feature_decomposition feature_statistics features from_document independent_completion
    joint_basis joint_solution objective_term_names objective_terms observed_solution
    observed_system one_task_model profile restore_state rows saved_arguments scales solution
    num_sampled sampled_rows shown_chunks spectral statistics streamed_loss to_document
    training_data warn_of_separate_tasks
    """.split()
)
"""Methods that modules of ours call, and users do not."""


TRIESTE = "trieste trieste.data trieste.models trieste.models.interfaces trieste.models.utils"
"""What `gpflow_cool.trieste` imports, besides `trieste.utils`."""


class StandIn(ModuleType):
    """A module of a package that is not installed: every name in it is an empty class."""

    __path__: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {"__class_getitem__": classmethod(lambda cls, item: cls)})


def stand_in_for_trieste() -> None:
    """Trieste needs an older TensorFlow than the site is built with; its adapter has pages too."""
    if getattr(find_spec("trieste"), "origin", None) is None:  # a mere folder has none
        sys.modules.update({name: StandIn(name) for name in [*TRIESTE.split(), "trieste.utils"]})
        defaults = type("DEFAULTS", (), {"JITTER": 1e-6})
        sys.modules["trieste.utils"].DEFAULTS = defaults  # type: ignore[attr-defined]


class PublicName(NamedTuple):
    """A name, and where it is imported from."""

    module: str
    name: str

    @property
    def value(self) -> Any:
        return getattr(import_module(self.module), self.name)

    @property
    def page(self) -> str:
        return f"{self.module}.{self.name}"


def names_of(module: str) -> list[str]:
    """What a public module offers, in the order in which it is shown."""
    if module == "gpflow_cool.trieste" and module not in sys.modules:
        stand_in_for_trieste()
    listed = getattr(import_module(module), "__all__", None)
    names = list(NAMES[module].split() if listed is None else listed)
    return sorted(names, key=lambda name: FIRST.index(name) if name in FIRST else len(FIRST))


def public_modules() -> list[str]:
    """Those described above, then any other that the package imports by name."""
    offered = [f"gpflow_cool.{name}" for name in gpflow_cool._SUBMODULES]
    return [*MODULES, *sorted(set(offered) - set(MODULES))]


def public_names() -> list[PublicName]:
    return [PublicName(module, name) for module in public_modules() for name in names_of(module)]


def members(cls: type) -> list[str]:
    """Names of the methods and properties of ours that a user calls."""
    ours = []
    for name, value in inspect.getmembers(cls):
        function = value.fget if isinstance(value, property) else value
        module = getattr(function, "__module__", None) or ""
        if not name.startswith("_") and name not in INTERNAL and module.startswith("gpflow_cool"):
            ours.append(name)
    return [*getattr(cls, "_fields", ()), *ours]


def title(text: str, line: str = "=") -> str:
    return f"{text}\n{line * len(text)}\n\n"


def page_of(found: PublicName) -> str:
    """The reStructuredText of the page of one name."""
    head = title(found.name) + f".. currentmodule:: {found.module}\n\n"
    if inspect.isclass(found.value):
        own = ", ".join(members(found.value))
        return head + f".. autoclass:: {found.name}\n   :members: {own}\n"
    kind = "autofunction" if callable(found.value) else "autodata"
    return head + f".. {kind}:: {found.name}\n"


def first_line(value: Any) -> str:
    """The first sentence of a docstring, for the table."""
    paragraph = (inspect.getdoc(value) or "").split("\n\n")[0]
    return " ".join(paragraph.split())


def table(section: str, found: list[PublicName]) -> str:
    """Names with their first lines, and the list of their pages for the sidebar."""
    rows = [
        f"   * - :doc:`{each.name} <{each.page}>`\n     - {first_line(each.value)}\n"
        for each in found
    ]
    pages = "".join(f"   {each.name} <{each.page}>\n" for each in found)
    return (
        ".. list-table::\n   :widths: 30 70\n\n"
        + "".join(rows)
        + f"\n.. toctree::\n   :hidden:\n   :caption: {section}\n\n"
        + pages
        + "\n"
    )


def described(value: Any) -> bool:
    """Whether a value has a docstring of its own; constants have that of their type."""
    return inspect.isclass(value) or inspect.isroutine(value)


def sections() -> dict[str, tuple[str, list[PublicName]]]:
    """Every section of the reference: its name, one line, and what it lists."""
    found = {
        module: (MODULES.get(module, first_line(import_module(module))), names)
        for module in public_modules()
        if (names := [each for each in public_names() if each.module == module])
    }
    results = [PublicName(*path.rsplit(".", 1)) for path in RESULTS]
    return {**found, "Results": ("What methods of the models return.", results)}


def write_pages(folder: Path) -> None:
    """All pages of the reference; those of names that are gone are removed."""
    folder.mkdir(exist_ok=True)
    pages = {
        "index": title("API reference") + "All names, with their methods: :ref:`genindex`.\n\n"
    }
    for name, (line, listed) in sections().items():
        shown = [each for each in listed if described(each.value)]
        pages["index"] += title(name, "-") + f"{line}\n\n" + table(name, shown)
        pages.update({each.page: page_of(each) for each in shown})
    for old in folder.glob("*.rst"):
        if old.stem not in pages:
            old.unlink()
    for name, text in pages.items():
        path = folder / f"{name}.rst"
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
