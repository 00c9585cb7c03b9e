"""
Every model, saved and loaded: the same predictions to the last bit, or a clear error.

A new process loads one in `models/test_cool_graphs.py`.
"""

import inspect
import os
import warnings

import gpflow
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp
from gpflow.utilities import parameter_dict
from numpy.testing import assert_array_equal
from problems import perturbed

from gpflow_cool.loading import load
from gpflow_cool.models import ConvMT, CoolMTGP, IndependentGPs, KroneckerMTGP, SparseCoolMTGP
from gpflow_cool.saving.folder import ARRAYS, DOCUMENT
from gpflow_cool.saving.models import document_of
from gpflow_cool.saving.modules import Writer

K = gpflow.kernels
M = gpflow.mean_functions


def assert_same(first, second, X):
    """Same predictions, parameters, bounds and flags."""
    predictions = [model.predict_y(X, full_output_cov=True) for model in (first, second)]
    for one, other in zip(*predictions, strict=True):
        assert_array_equal(one, other)
    assert first.task_names == second.task_names
    ours, theirs = parameter_dict(module_of(first)), parameter_dict(module_of(second))
    assert list(ours) == list(theirs)
    for path, parameter in ours.items():
        assert_array_equal(parameter.numpy(), theirs[path].numpy())
        assert parameter.trainable == theirs[path].trainable
        probe = np.ones_like(parameter.unconstrained_variable.numpy()) * -30.0
        assert_array_equal(
            parameter.transform.forward(probe), theirs[path].transform.forward(probe)
        )


def module_of(model):
    """What has the parameters."""
    if isinstance(model, IndependentGPs):
        holder = gpflow.Module()
        holder.models = model.models
        return holder
    return model.model if isinstance(model, ConvMT) else model


MODELS = {
    "cool": lambda data: CoolMTGP(data, K.Matern32(lengthscales=[1.0, 2.0])),
    "cool hierarchical": lambda data: CoolMTGP(
        data, K.Linear() + K.White(), M.Constant(np.ones(3)), learning="hierarchical"
    ),
    "cool of the paper": lambda data: CoolMTGP(
        data,
        K.SquaredExponential(),
        weight_prior="unit",
        engine="spectral",
        sigma2=1e-6,
        task_names=["a", "b", "ç"],
    ),
    "std-mt": lambda data: KroneckerMTGP.std_mt(data, K.Matern12(), rank=2),
    "sigma-mt": lambda data: KroneckerMTGP.sigma_mt(data, K.Matern12(), rank=1),
    "truth": lambda data: KroneckerMTGP.ground_truth(data, K.Matern12(), np.eye(3), np.eye(3)),
    "sparse": lambda data: SparseCoolMTGP(data, K.Matern32(), data[0][:4], M.Constant(np.ones(3))),
    "sparse trained": lambda data: SparseCoolMTGP(
        data,
        K.SquaredExponential(),
        gpflow.inducing_variables.InducingPoints(data[0][:4]),
        learning="hierarchical",
        weight_variance=0.3,
        chunk_rows=4,
    ),
    "independent": lambda data: IndependentGPs(data, K.Matern52()),
    "conv": lambda data: ConvMT(data, K.Matern52(), num_inducing=4, seed=3),
    **{
        f"rank {rank}, noise {noise}": lambda data, rank=rank, noise=noise: KroneckerMTGP(
            data, K.SquaredExponential(), rank=rank, noise_rank=noise
        )
        for rank, noise in [(None, "full"), (0, "diagonal"), (3, 0), (1, 3)]
    },
}


@pytest.fixture
def single_precision():
    with gpflow.config.as_context(gpflow.config.Config(float=np.float32)):
        yield


@pytest.mark.parametrize("name", MODELS)
def test_every_model_comes_back(data, rng, tmp_path, name):
    model = MODELS[name](data)
    perturbed(module_of(model), rng)
    assert model.save(tmp_path / "a" / "model") == tmp_path / "a" / "model"
    again = load(tmp_path / "a" / "model")
    assert type(again) is type(model)
    assert_same(model, again, rng.normal(size=[4, 2]))
    assert sorted(os.listdir(tmp_path / "a")) == ["model"]
    assert sorted(os.listdir(tmp_path / "a" / "model")) == [ARRAYS, DOCUMENT]


@pytest.mark.usefixtures("single_precision")
@pytest.mark.parametrize("name", MODELS)
def test_every_model_comes_back_in_float32(data, rng, tmp_path, name):
    model = MODELS[name]([part.astype(np.float32) for part in data])
    perturbed(module_of(model), rng)
    model.save(tmp_path / "model")
    again, X = load(tmp_path / "model"), np.float32(rng.normal(size=[4, 2]))
    assert_same(model, again, X)
    assert again.predict_y(X)[0].dtype == tf.float32
    if isinstance(model, KroneckerMTGP):  # also what training starts from
        assert_array_equal(model.training_loss(), again.training_loss())


def test_options_and_flags_come_back(data, tmp_path):
    options = {"learning": "hierarchical", "engine": "spectral", "weight_variance": 0.3}
    model = CoolMTGP(data, K.SquaredExponential(), **options)
    gpflow.set_trainable(model.kernel.variance, True)
    gpflow.set_trainable(model.sigma2, False)
    gpflow.set_trainable(model.weight_variance, False)
    model.task_column = 1
    model.save(tmp_path / "model")
    again = load(tmp_path / "model")
    assert (again.learning, again.engine, again.task_column) == ("hierarchical", "spectral", 1)
    assert again.weight_prior == "scaled" and again.weight_variance.numpy() == 0.3
    assert again.kernel.variance.trainable and not again.sigma2.trainable
    assert not again.weight_variance.trainable
    assert_array_equal(again.training_loss(), model.training_loss())
    again.fit(verbose=0, steps=2)
    assert float(again.training_loss()) < float(model.training_loss())
    assert again.weight_variance.numpy() == 0.3


def test_the_prior_of_the_paper_comes_back(data, tmp_path):
    for Model, points in ((CoolMTGP, ()), (SparseCoolMTGP, (data[0][:4],))):
        model = Model(data, K.SquaredExponential(), *points, weight_prior="unit")
        model.save(tmp_path / Model.__name__)
        again = load(tmp_path / Model.__name__)
        assert again.weight_prior == "unit" and again.weight_variance is None
        assert_array_equal(again.training_loss(), model.training_loss())


CHAIN = {"learning", "weight_prior", "weight_variance", "b", "sigma2", "task_names"}


@pytest.mark.parametrize(
    "model, options",
    [
        (CoolMTGP, CHAIN | {"engine"}),
        (
            KroneckerMTGP,
            {"rank", "noise_rank", "task_covariance", "noise_covariance", "task_names"},
        ),
        (SparseCoolMTGP, CHAIN | {"chunk_rows", "strategy"}),
        (IndependentGPs, {"task_names"}),
        (ConvMT, {"num_inducing", "seed", "task_names"}),
    ],
)
def test_no_option_is_forgotten(model, options):
    """Whoever adds an option to a model: save it in to_document, restore it in from_document."""
    parameters = inspect.signature(model).parameters.values()
    assert {p.name for p in parameters if p.kind == p.KEYWORD_ONLY} == options


def test_data_that_may_change_stays_so(data, tmp_path):
    X, Y = (tf.Variable(part, trainable=False, shape=[None, part.shape[1]]) for part in data)
    CoolMTGP((X, Y), K.Matern12()).save(tmp_path / "model")
    again = load(tmp_path / "model")
    again.data[0].assign(data[0][:4])
    again.data[1].assign(data[1][:4])
    assert again.leave_one_out().mean.shape == (4, 3)


# Custom classes --------------------------------------------------------------------------------


class Halved(K.SquaredExponential):
    """A kernel of the user's own."""

    def K_r2(self, r2):
        return 0.5 * super().K_r2(r2)

    def K_diag(self, X):
        return 0.5 * super().K_diag(X)


class Shifted(tfp.bijectors.Shift):
    """A transform of the user's own."""


def test_custom_kernels_are_brought_along(data, rng, tmp_path):
    model = perturbed(CoolMTGP(data, Halved(lengthscales=[1.0, 2.0]) + K.White(0.1)), rng)
    with pytest.warns(UserWarning, match="and the class Halved of the kernel"):
        model.save(tmp_path / "model")
    with pytest.raises(
        ValueError, match="a kernel of class Halved, which is not GPflow's: pass ke"
    ):
        load(tmp_path / "model")
    again = load(tmp_path / "model", kernel=Halved(lengthscales=[9.0, 9.0]) + K.White())
    assert_same(model, again, rng.normal(size=[4, 2]))
    with pytest.raises(ValueError, match=r"the given kernel has parameters \['.lengthscales'"):
        load(tmp_path / "model", kernel=Halved(lengthscales=[9.0, 9.0]))
    with pytest.raises(ValueError, match=r"lengthscales of the given kernel has shape \(\), but"):
        load(tmp_path / "model", kernel=Halved() + K.White())


def test_a_custom_transform_or_mean_function_is_brought_along(data, rng, tmp_path):
    def kernel():
        made = K.SquaredExponential()
        made.lengthscales = gpflow.Parameter(1.5, transform=Shifted(np.float64(1.0)))
        return made

    class Doubled(M.Constant):
        def __call__(self, X):
            return 2.0 * super().__call__(X)

    model = perturbed(CoolMTGP(data, kernel(), Doubled(np.ones(3))), rng)
    with pytest.warns(
        UserWarning,
        match="the transform Shifted of the kernel, the class Doubled of the mean_function is",
    ):
        model.save(tmp_path / "model")
    with pytest.raises(
        ValueError, match="a kernel with the transform Shifted, which is not GPflow"
    ):
        load(tmp_path / "model")
    with pytest.raises(ValueError, match="a mean_function of class Doubled.*: pass mean_function="):
        load(tmp_path / "model", kernel=kernel())
    again = load(tmp_path / "model", kernel=kernel(), mean_function=Doubled(np.zeros(3)))
    assert_same(model, again, rng.normal(size=[4, 2]))


def test_a_class_of_gpflows_name_is_still_custom(data, tmp_path):
    class SquaredExponential(K.SquaredExponential):
        pass

    with pytest.warns(UserWarning, match=r"To load the model, .*load\(folder, kernel=\.\.\.\)\.$"):
        CoolMTGP(data, SquaredExponential()).save(tmp_path / "model")
    with pytest.raises(ValueError, match="a kernel of class SquaredExponential, which is not"):
        load(tmp_path / "model")


def test_independent_models_with_a_custom_kernel(data, rng, tmp_path):
    model = IndependentGPs(data, Halved())
    perturbed(module_of(model), rng)
    with pytest.warns(
        UserWarning, match="^Code is not saved, and the class Halved of the kernel is"
    ):
        model.save(tmp_path / "model")
    assert_same(model, load(tmp_path / "model", kernel=Halved()), rng.normal(size=[4, 2]))


def test_priors_are_warned_of(data, tmp_path):
    model = CoolMTGP(data, K.SquaredExponential())
    model.kernel.lengthscales.prior = tfp.distributions.Gamma(np.float64(2.0), np.float64(1.0))
    message = "Priors are not saved, and 1 of .* After loading, predictions are the same. Training"
    with pytest.warns(UserWarning, match=message):
        model.save(tmp_path / "model")
    assert load(tmp_path / "model").kernel.lengthscales.prior is None


def test_what_cannot_be_saved(data, tmp_path):
    class Mine(CoolMTGP):
        pass

    with pytest.raises(ValueError, match="Mine cannot be saved, only ConvMT, CoolMTGP, "):
        Mine(data, K.Matern12()).save(tmp_path / "model")
    with pytest.raises(ValueError, match="GPR cannot be saved"):
        document_of(gpflow.models.GPR(data, K.Matern12()), Writer())
    stream = tf.data.Dataset.from_tensor_slices(data)
    with pytest.raises(ValueError, match="is a tf.data.Dataset, which is not kept: save the para"):
        SparseCoolMTGP(stream, K.Matern12(), data[0][:3]).save(tmp_path / "model")
    points = gpflow.inducing_variables.Multiscale(data[0][:3], np.ones((3, 2)))
    with pytest.raises(ValueError, match="of class Multiscale cannot be saved"):
        SparseCoolMTGP(data, K.SquaredExponential(), points).save(tmp_path / "model")
    assert os.listdir(tmp_path) == []


def test_another_float_is_asked_for(data, tmp_path):
    with gpflow.config.as_context(gpflow.config.Config(float=np.float32)):
        model = CoolMTGP(data, K.SquaredExponential())
        model.save(tmp_path / "model")
        assert_same(model, load(tmp_path / "model"), data[0][:2])
    with pytest.raises(ValueError, match=r"saved in float32.*set_default_float\(np.float32\)"):
        load(tmp_path / "model")


def test_loading_warns_of_nothing(data, tmp_path):
    X, Y = data
    with pytest.warns(UserWarning, match="standardise Y"):
        model = KroneckerMTGP((X, Y * [1.0, 1.0, 1000.0]), K.SquaredExponential())
    model.save(tmp_path / "model")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load(tmp_path / "model")


@pytest.mark.slow
def test_values_at_the_end_of_a_transform_come_back(rng, tmp_path):
    """A value that has underflowed to its bound has no inverse; the saved one needs none."""
    x = np.linspace(0, 1, 8)[:, None]
    exact = KroneckerMTGP((x, 1e3 * np.hstack([np.sin(6 * x), np.cos(6 * x)])), K.Matern52())
    exact.fit(verbose=0)
    kernel = K.RationalQuadratic()
    cool = CoolMTGP((x, np.sin(6 * x)), kernel)
    kernel.alpha.unconstrained_variable.assign(-800.0)
    for number, model in enumerate([exact, cool]):
        model.save(tmp_path / f"{number}")
        assert_same(model, load(tmp_path / f"{number}"), rng.normal(size=[4, 1]))


@pytest.mark.parametrize("scale", [1e-12, 1e12])
def test_covariances_of_any_scale_come_back(data, rng, tmp_path, scale):
    X, Y = data
    model = KroneckerMTGP((X, scale * Y), K.Matern52())
    model.save(tmp_path / "model")
    assert_same(model, load(tmp_path / "model"), rng.normal(size=[4, 2]))
