"""
GPflow kernels, mean functions and parameters as plain data, and back, without running any code.

A module becomes a tree of class names from the tables below, arguments of constructors ("facts"),
and numbers of parameters. The parameters are listed once, so that two places may share one. A class
that is in no table is called custom: whoever loads the model must pass an object of it.
"""

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import gpflow
import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp
from gpflow import Module, Parameter, kernels, mean_functions
from gpflow.base import AnyNDArray
from gpflow.utilities import parameter_dict

from ..chain.starting import NoiseFloor
from ..joint import covariances
from ..kernels import Laplacian
from .folder import Content

CUSTOM = "custom"

TRANSFORMS: dict[str, tuple[Any, tuple[str, ...]]] = {
    "Identity": (tfp.bijectors.Identity, ()),
    "Softplus": (tfp.bijectors.Softplus, ("hinge_softness", "low")),
    "Exp": (tfp.bijectors.Exp, ()),
    "Shift": (tfp.bijectors.Shift, ("shift",)),
    "Scale": (tfp.bijectors.Scale, ("scale",)),
    "Sigmoid": (tfp.bijectors.Sigmoid, ("low", "high")),
    "NoiseFloor": (NoiseFloor, ("shift",)),
    "ScaledTriangle": (covariances.ScaledTriangle, ("scale",)),
    "Chain": (tfp.bijectors.Chain, ("bijectors",)),
    "FillTriangular": (tfp.bijectors.FillTriangular, ("upper",)),
    "FillScaleTriL": (tfp.bijectors.FillScaleTriL, ("diag_bijector", "diag_shift")),
}
"""Transforms of parameters, with the names of their constructors' arguments."""


class Recipe(NamedTuple):
    """How a module of one class is taken apart and made again."""

    make: Callable[..., Module]
    """Makes a module from facts, and from parts by name; parameters are set afterwards."""

    parameters: tuple[str, ...] = ()
    parts: tuple[str, ...] = ()
    """Attributes that hold a module, or a list of modules."""

    facts: Callable[[Any], dict[str, Any]] = lambda module: {}
    """What else the constructor needs, as JSON."""


class CustomModule(ValueError):
    """A module of a user's own class, or with a transform of one."""


# Which classes -------------------------------------------------------------------------------

STATIONARY = (
    kernels.SquaredExponential,
    kernels.Exponential,
    kernels.Matern12,
    kernels.Matern32,
    kernels.Matern52,
    kernels.Cosine,
    Laplacian,
)

KERNELS: dict[str, Recipe] = {
    **{cls.__name__: Recipe(cls, ("variance", "lengthscales")) for cls in STATIONARY},
    "RationalQuadratic": Recipe(kernels.RationalQuadratic, ("variance", "lengthscales", "alpha")),
    "White": Recipe(kernels.White, ("variance",)),
    "Constant": Recipe(kernels.Constant, ("variance",)),
    "Linear": Recipe(kernels.Linear, ("variance",)),
    "Polynomial": Recipe(
        kernels.Polynomial, ("variance", "offset"), facts=lambda k: {"degree": float(k.degree)}
    ),
    "ArcCosine": Recipe(
        kernels.ArcCosine,
        ("variance", "weight_variances", "bias_variance"),
        facts=lambda k: {"order": int(k.order)},
    ),
    "Periodic": Recipe(kernels.Periodic, ("period",), ("base_kernel",)),
    "Sum": Recipe(kernels.Sum, parts=("kernels",)),
    "Product": Recipe(kernels.Product, parts=("kernels",)),
    "ChangePoints": Recipe(
        lambda kernels: gpflow.kernels.ChangePoints(kernels, np.arange(len(kernels) - 1.0)),
        ("locations", "steepness"),
        ("kernels",),
    ),
}

MEAN_FUNCTIONS: dict[str, Recipe] = {
    "Zero": Recipe(mean_functions.Zero, facts=lambda m: {"output_dim": int(m.output_dim)}),
    "Constant": Recipe(mean_functions.Constant, ("c",)),
    "Linear": Recipe(mean_functions.Linear, ("A", "b")),
    "Identity": Recipe(mean_functions.Identity, facts=lambda m: {"input_dim": m.input_dim}),
    "Polynomial": Recipe(
        mean_functions.Polynomial,
        ("w",),
        facts=lambda m: {
            "degree": int(np.max(np.sum(m.powers, axis=1))),
            "input_dim": int(m.powers.shape[1]),
            "output_dim": int(m.w.shape[0]),
        },
    ),
    "Additive": Recipe(
        lambda add_1, add_2: mean_functions.Additive(add_1, add_2), parts=("add_1", "add_2")
    ),
    "Product": Recipe(
        lambda prod_1, prod_2: mean_functions.Product(prod_1, prod_2), parts=("prod_1", "prod_2")
    ),
}

COVARIANCES: dict[str, Recipe] = {
    "FullCovariance": Recipe(
        lambda floor: covariances.FullCovariance(covariances.eye(len(floor)), floor),
        ("factor",),
        facts=lambda m: {"floor": [float(variance) for variance in m.floor]},
    ),
    "LowRankCovariance": Recipe(
        lambda num_tasks: covariances.LowRankCovariance(covariances.eye(num_tasks), 1, shared=True),
        ("weights", "diagonal"),
        facts=lambda m: {"num_tasks": int(m.num_tasks)},
    ),
    "DiagonalCovariance": Recipe(
        lambda num_tasks: covariances.DiagonalCovariance(covariances.eye(num_tasks), shared=True),
        ("diagonal",),
        facts=lambda m: {"num_tasks": int(m.num_tasks)},
    ),
}

TABLES = {"kernel": KERNELS, "mean_function": MEAN_FUNCTIONS, "covariance": COVARIANCES}

SIZES = ("num_tasks", "floor", "input_dim", "output_dim")
"""Facts that decide how much memory a module takes; none is larger than the data have columns."""


def has_active_dims(recipe: Recipe, kind: str) -> bool:
    """Whether the module is a kernel over columns of X, not one made of other kernels."""
    return kind == "kernel" and not recipe.parts


# To plain data -------------------------------------------------------------------------------


class Writer:
    """Takes modules apart, and collects their arrays and parameters."""

    def __init__(self) -> None:
        self.arrays: dict[str, AnyNDArray] = {}
        self.parameters: list[dict[str, Any]] = []
        self.with_priors = 0
        self.custom: dict[str, str] = {}
        """Custom modules: kind -> what is not GPflow's."""
        self._numbers: dict[int, int] = {}
        self._names: dict[bytes, str] = {}
        self._keep: list[Parameter] = []  # so that no id is reused

    def array(self, name: str, value: Any) -> str:
        """Store an array, unless an equal one is stored; return the name of what is stored."""
        array = np.asarray(value)
        key = hashlib.sha256(repr((array.shape, array.dtype.str)).encode() + array.tobytes())
        if key.digest() not in self._names:
            taken = sum(other.split(".")[0] == name for other in self.arrays)
            self._names[key.digest()] = name = f"{name}.{taken}" if taken else name
            self.arrays[name] = array
        return self._names[key.digest()]

    def parameter(self, parameter: Parameter) -> int:
        """Number of a parameter in the list."""
        if id(parameter) not in self._numbers:
            self._numbers[id(parameter)] = number = len(self.parameters)
            self._keep.append(parameter)
            self.with_priors += parameter.prior is not None
            raw = parameter.unconstrained_variable
            self.parameters.append(
                {
                    "value": self.array(f"parameter_{number}", parameter.numpy()),
                    "unconstrained": self.array(f"unconstrained_{number}", raw.numpy()),
                    "transform": transform_tree(parameter.transform),
                    "trainable": bool(parameter.trainable),
                }
            )
        return self._numbers[id(parameter)]

    def paths(self, module: Module) -> dict[str, int]:
        """Numbers of all parameters of a module, by their paths in it."""
        return {path: self.parameter(p) for path, p in parameter_dict(module).items()}

    def module(self, module: Module, kind: str) -> dict[str, Any]:
        """A module as a tree, with the paths of its parameters."""
        for parameter in module.parameters:
            transform = transform_tree(parameter.transform)
            if CUSTOM in transform:
                self.custom[kind] = f"the transform {transform[CUSTOM]}"
        return {"tree": self._tree(module, kind), "paths": self.paths(module)}

    def _custom(self, name: str, kind: str) -> dict[str, Any]:
        self.custom[kind] = f"the class {name}"
        return {CUSTOM: name}

    def _tree(self, module: Module, kind: str) -> dict[str, Any]:
        name = type(module).__name__
        recipe = TABLES[kind].get(name)
        if recipe is None or not is_from(type(module), recipe):
            return self._custom(name, kind)
        values = {attribute: getattr(module, attribute) for attribute in recipe.parameters}
        if not all(isinstance(value, Parameter) for value in values.values()):
            return self._custom(name, kind)
        tree: dict[str, Any] = {"class": name, "facts": recipe.facts(module)}
        if has_active_dims(recipe, kind):
            tree["active_dims"] = active_dims_tree(module.active_dims)
        tree["parameters"] = {key: self.parameter(value) for key, value in values.items()}
        tree["parts"] = {
            key: each(lambda part: self._tree(part, kind), getattr(module, key))
            for key in recipe.parts
        }
        return tree


def each(function: Callable[[Any], Any], parts: Any) -> Any:
    """A function of one part, or of each of a sequence of parts."""
    return [function(part) for part in parts] if isinstance(parts, Sequence) else function(parts)


def is_from(cls: type, recipe: Recipe) -> bool:
    """Whether a class is the one in the tables, and not a user's own of the same name."""
    if isinstance(recipe.make, type):
        return cls is recipe.make
    return cls.__module__.split(".")[0] in ("gpflow", covariances.__name__.split(".")[0])


def active_dims_tree(active_dims: Any) -> Any:
    """The columns of a kernel, as JSON."""
    if isinstance(active_dims, slice):
        ends = (active_dims.start, active_dims.stop, active_dims.step)
        return {"slice": [None if end is None else int(end) for end in ends]}
    return [int(column) for column in active_dims]


def transform_tree(transform: tfp.bijectors.Bijector) -> dict[str, Any]:
    """A transform as a tree; of a custom one only the name."""
    name = type(transform).__name__
    if name not in TRANSFORMS or TRANSFORMS[name][0] is not type(transform):
        return {CUSTOM: name}
    arguments = TRANSFORMS[name][1]
    given: Mapping[str, Any] = transform.parameters
    return {"class": name, "arguments": {key: argument_tree(given[key]) for key in arguments}}


def argument_tree(value: Any) -> Any:
    """An argument of a transform as JSON: None, a flag, numbers or transforms."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, tfp.bijectors.Bijector):
        return transform_tree(value)
    if isinstance(value, list | tuple):
        return [transform_tree(part) for part in value]
    array = np.asarray(value)
    return {"numbers": array.tolist(), "dtype": array.dtype.name}


# And back ------------------------------------------------------------------------------------


class Reader:
    """Makes again what a :class:`Writer` has taken apart."""

    def __init__(self, content: Content) -> None:
        self.document, self.arrays = content
        self.num_columns: float = np.inf
        """The larger of the numbers of inputs and tasks, once the data are read."""
        self._made: dict[int, Parameter] = {}

    def array(self, name: str) -> AnyNDArray:
        return self.arrays[name]

    def parameter(self, number: int) -> Parameter:
        """A parameter by its number; always the same object."""
        if number not in self._made:
            entry = self.document["parameters"][number]
            value, raw = self.array(entry["value"]), self.array(entry["unconstrained"])
            transform = make_transform(entry["transform"])
            # The saved value may have reached its bound, where the transform has no inverse: so the
            # parameter starts elsewhere. The unconstrained value is equal to the last bit.
            parameter = Parameter(
                transform.forward(np.zeros_like(raw)),
                transform=transform,
                trainable=bool(entry["trainable"]),
                dtype=value.dtype,
            )
            parameter.unconstrained_variable.assign(raw)
            if not np.allclose(parameter.numpy(), value, rtol=1e-4, atol=1e-6):
                raise ValueError(f"parameter {number} and its unconstrained value disagree")
            self._made[number] = parameter
        return self._made[number]

    def module(self, saved: Mapping[str, Any], kind: str, given: Module | None = None) -> Module:
        """
        A module as it was saved.

        :param given: The user's own module, which gets the saved values; needed if it is custom.
        """
        if given is None:
            return self._make(saved["tree"], kind)
        self.assign(given, saved["paths"], kind)
        return given

    def _make(self, tree: Mapping[str, Any], kind: str) -> Module:
        if CUSTOM in tree:
            raise CustomModule(custom_message(f"a {kind} of class {tree[CUSTOM]}", kind))
        recipe = TABLES[kind][tree["class"]]
        facts = dict(tree["facts"])
        self._check_sizes(facts, tree["parameters"])
        if has_active_dims(recipe, kind):
            facts["active_dims"] = make_active_dims(tree["active_dims"])
        for name in recipe.parts:
            facts[name] = each(lambda part: self._make(part, kind), tree["parts"][name])
        module = recipe.make(**facts)
        for name in recipe.parameters:
            try:
                setattr(module, name, self.parameter(tree["parameters"][name]))
            except CustomModule as error:
                raise CustomModule(custom_message(f"a {kind} with {error}", kind)) from error
        return module

    def _check_sizes(self, facts: Mapping[str, Any], numbers: Mapping[str, int]) -> None:
        """Raise if a module would be larger than the data ask for."""
        for name in SIZES:
            value = facts.get(name)
            size = len(value) if isinstance(value, list) else value
            if size is not None and not size <= self.num_columns:
                raise ValueError(f"{name} is for {size} columns, the data have {self.num_columns}")
        if "degree" in facts and "w" in numbers:  # a polynomial, with one weight per term
            degree, parameter = facts["degree"], self.document["parameters"][numbers["w"]]
            terms = self.array(parameter["value"]).shape[-1]
            if degree >= terms or math.comb(degree + facts["input_dim"], degree) != terms:
                raise ValueError(f"a polynomial of degree {degree} does not have {terms} terms")

    def assign(self, module: Module, paths: Mapping[str, int], name: str) -> None:
        """Give the parameters of a module their saved values and flags, by their paths."""
        parameters = parameter_dict(module)
        if set(parameters) != set(paths):
            raise CustomModule(
                f"the given {name} has parameters {sorted(parameters)}, but"
                f" {sorted(paths)} were saved: pass one of the same structure"
            )
        for path, number in paths.items():
            entry, parameter = self.document["parameters"][number], parameters[path]
            value = self.array(entry["value"])
            if parameter.shape != value.shape:
                raise CustomModule(
                    f"{path} of the given {name} has shape {tuple(parameter.shape)}, but"
                    f" {value.shape} was saved: pass one of the same structure"
                )
            parameter.assign(value)
            if transform_tree(parameter.transform) == entry["transform"]:  # to the last bit
                parameter.unconstrained_variable.assign(self.array(entry["unconstrained"]))
            gpflow.set_trainable(parameter, bool(entry["trainable"]))

    def restore_flags(self) -> None:
        """Make parameters trainable or not, as saved: constructors may have changed that."""
        for number, parameter in self._made.items():
            gpflow.set_trainable(parameter, bool(self.document["parameters"][number]["trainable"]))


def custom_message(what: str, kind: str) -> str:
    return (
        f"it has {what}, which is not GPflow's: pass {kind}=, an object of the same structure,"
        " which takes on the saved values"
    )


def make_active_dims(tree: Any) -> Any:
    return slice(*tree["slice"]) if isinstance(tree, dict) else [int(column) for column in tree]


def make_transform(tree: Mapping[str, Any]) -> tfp.bijectors.Bijector:
    """The transform of a tree."""
    if CUSTOM in tree:
        raise CustomModule(f"the transform {tree[CUSTOM]}")
    cls, arguments = TRANSFORMS[tree["class"]]
    return cls(**{key: make_argument(tree["arguments"][key]) for key in arguments})


def make_argument(tree: Any) -> Any:
    if isinstance(tree, list):
        return [make_transform(part) for part in tree]
    if not isinstance(tree, dict):
        return tree
    if "numbers" in tree:
        return tf.constant(tree["numbers"], dtype=tree["dtype"])
    return make_transform(tree)
