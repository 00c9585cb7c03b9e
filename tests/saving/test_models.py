"""Saved and loaded: the same predictions to the last bit, and nothing but clear errors."""

import hashlib
import inspect
import json
import os
import pickle
import resource
import subprocess
import sys
import warnings
import zipfile

import gpflow
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp
from gpflow.utilities import parameter_dict
from numpy.testing import assert_array_equal

from gpflow_cool.loading import load
from gpflow_cool.models import ConvMT, CoolMTGP, IndependentGPs, KroneckerMTGP, SparseCoolMTGP
from gpflow_cool.saving.folder import ARRAYS, DOCUMENT, Content
from gpflow_cool.saving.models import document_of
from gpflow_cool.saving.modules import KERNELS, MEAN_FUNCTIONS, Reader, Writer

K = gpflow.kernels
M = gpflow.mean_functions


@pytest.fixture
def data(rng):
    return rng.normal(size=[9, 2]), rng.normal(size=[9, 3])


def perturbed(model, rng):
    """Every parameter somewhere else, so that no value is a default."""
    for parameter in parameter_dict(model).values():
        raw = parameter.unconstrained_variable
        raw.assign(raw + 0.3 * rng.normal(size=raw.shape))
    return model


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
    "cool approximate": lambda data: CoolMTGP(
        data, K.Linear() + K.White(), M.Constant(np.ones(3)), learning="approximate"
    ),
    "cool cholesky": lambda data: CoolMTGP(
        data, K.SquaredExponential(), engine="cholesky", sigma2=1e-6, task_names=["a", "b", "ç"]
    ),
    "std-mt": lambda data: KroneckerMTGP.std_mt(data, K.Matern12(), rank=2),
    "sigma-mt": lambda data: KroneckerMTGP.sigma_mt(data, K.Matern12(), rank=1),
    "truth": lambda data: KroneckerMTGP.ground_truth(data, K.Matern12(), np.eye(3), np.eye(3)),
    "sparse": lambda data: SparseCoolMTGP(data, K.Matern32(), data[0][:4], M.Constant(np.ones(3))),
    "sparse trained": lambda data: SparseCoolMTGP(
        data,
        K.SquaredExponential(),
        gpflow.inducing_variables.InducingPoints(data[0][:4]),
        learning="approximate",
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


def test_options_and_flags_come_back(data, tmp_path):
    model = CoolMTGP(data, K.SquaredExponential(), learning="approximate", engine="cholesky")
    gpflow.set_trainable(model.kernel.variance, True)
    gpflow.set_trainable(model.sigma2, False)
    model.task_column = 1
    model.save(tmp_path / "model")
    again = load(tmp_path / "model")
    assert (again.learning, again.engine, again.task_column) == ("approximate", "cholesky", 1)
    assert again.kernel.variance.trainable and not again.sigma2.trainable
    assert_array_equal(again.training_loss(), model.training_loss())
    again.fit(verbose=0, steps=2)
    assert float(again.training_loss()) < float(model.training_loss())


@pytest.mark.parametrize(
    "model, options",
    [
        (CoolMTGP, {"learning", "b", "sigma2", "engine", "task_names"}),
        (
            KroneckerMTGP,
            {"rank", "noise_rank", "task_covariance", "noise_covariance", "task_names"},
        ),
        (SparseCoolMTGP, {"learning", "b", "sigma2", "chunk_rows", "strategy", "task_names"}),
        (IndependentGPs, {"task_names"}),
        (ConvMT, {"num_inducing", "seed", "task_names"}),
    ],
)
def test_no_option_is_forgotten(model, options):
    """Whoever adds an option to a model: save it in to_document, restore it in from_document."""
    parameters = inspect.signature(model).parameters.values()
    assert {p.name for p in parameters if p.kind == p.KEYWORD_ONLY} == options


def test_a_new_process_predicts_the_same(data, rng, tmp_path):
    kernel = K.SquaredExponential() * K.Periodic(K.Matern52(), period=2.0)
    model = perturbed(CoolMTGP(data, kernel), rng)
    model.save(tmp_path / "model")
    Xnew = rng.normal(size=[4, 2])
    np.save(tmp_path / "Xnew.npy", Xnew)
    code = (
        "import sys, numpy as np\n"
        "from gpflow_cool.loading import load\n"
        "folder = sys.argv[1]\n"
        "mean, cov = load(folder + '/model').predict_f_full_cov(np.load(folder + '/Xnew.npy'))\n"
        "np.savez(folder + '/out.npz', mean=mean, cov=cov)\n"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True, timeout=600)
    mean, cov = model.predict_f_full_cov(Xnew)
    with np.load(tmp_path / "out.npz") as there:
        np.testing.assert_allclose(there["mean"], mean, rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(there["cov"], cov, rtol=1e-10, atol=1e-12)


def round_trip(module, kind):
    """A module through JSON and back."""
    writer = Writer()
    saved = json.loads(json.dumps(writer.module(module, kind)))
    document = json.loads(json.dumps({"parameters": writer.parameters}))
    return Reader(Content(document, writer.arrays)).module(saved, kind)


KERNEL_EXAMPLES = {
    **{
        name: KERNELS[name].make
        for name in KERNELS
        if name not in ("Periodic", "Sum", "Product", "ChangePoints", "Polynomial", "ArcCosine")
    },
    "Polynomial": lambda: K.Polynomial(2, offset=0.5),
    "ArcCosine": lambda: K.ArcCosine(1, weight_variances=[1.0, 2.0]),
    "Periodic": lambda: K.Periodic(K.Matern32(active_dims=[1]), period=2.0),
    "Sum": lambda: K.Matern32(active_dims=[1]) + K.Cosine(active_dims=slice(0, 1)) + K.White(),
    "Product": lambda: K.Matern32(active_dims=[1]) * (K.Linear() + K.Constant()),
    "ChangePoints": lambda: K.ChangePoints(
        [K.Matern12(), K.Linear(), K.Constant()], [0.1, 0.4], steepness=3.0
    ),
}


@pytest.mark.parametrize("name", KERNELS)
def test_kernels_come_back(rng, name):
    kernel = perturbed(KERNEL_EXAMPLES[name](), rng)
    X = rng.normal(size=[5, 1 if name == "ChangePoints" else 2])
    again = round_trip(kernel, "kernel")
    assert type(again) is type(kernel)
    assert_array_equal(kernel(X), again(X))
    assert_array_equal(kernel(X, X[:2] + 0.1), again(X, X[:2] + 0.1))


MEAN_EXAMPLES = {
    "Zero": lambda: M.Zero(3),
    "Constant": lambda: M.Constant(np.ones(3)),
    "Linear": lambda: M.Linear(np.ones([2, 3]), np.zeros(3)),
    "Identity": lambda: M.Identity(2),
    "Polynomial": lambda: M.Polynomial(2, 2, 3),
    "Additive": lambda: M.Constant(np.ones(1)) + M.Linear(np.ones([2, 1])),
    "Product": lambda: M.Constant(np.ones(1)) * M.Linear(np.ones([2, 1])),
}


@pytest.mark.parametrize("name", MEAN_FUNCTIONS)
def test_mean_functions_come_back(rng, name):
    function = perturbed(MEAN_EXAMPLES[name](), rng)
    X = rng.normal(size=[5, 2])
    assert_array_equal(function(X), round_trip(function, "mean_function")(X))


@pytest.mark.parametrize(
    "transform",
    [
        tfp.bijectors.Exp(),
        tfp.bijectors.Sigmoid(np.float64(0.5), np.float64(3.0)),
        gpflow.utilities.positive(lower=0.25),
        tfp.bijectors.Chain([tfp.bijectors.Scale(np.float64(2.0)), tfp.bijectors.Softplus()]),
    ],
    ids=lambda transform: transform.name,
)
def test_bounds_come_back(transform):
    kernel = K.SquaredExponential()
    kernel.lengthscales = gpflow.Parameter(1.1, transform=transform)
    again = round_trip(kernel, "kernel").lengthscales
    assert_array_equal(again.numpy(), kernel.lengthscales.numpy())
    for raw in (-40.0, 0.3, 40.0):
        raw = np.float64(raw)
        assert_array_equal(again.transform.forward(raw), transform.forward(raw))


def test_a_shared_parameter_stays_shared():
    first, second = K.Matern12(), K.Matern52()
    second.lengthscales = first.lengthscales
    again = round_trip(first + second, "kernel")
    assert again.kernels[0].lengthscales is again.kernels[1].lengthscales
    assert again.kernels[0].variance is not again.kernels[1].variance


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

    CoolMTGP(data, SquaredExponential()).save(tmp_path / "model")
    with pytest.raises(ValueError, match="a kernel of class SquaredExponential, which is not"):
        load(tmp_path / "model")


def test_independent_models_with_a_custom_kernel(data, rng, tmp_path):
    model = IndependentGPs(data, Halved())
    perturbed(module_of(model), rng)
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


# Places ----------------------------------------------------------------------------------------


@pytest.fixture
def model(data):
    return CoolMTGP(data, K.SquaredExponential())


def test_only_a_saved_model_is_replaced_and_only_by_force(model, data, tmp_path):
    folder = tmp_path / "model"
    model.save(folder)
    other = CoolMTGP(data, K.Matern12())
    with pytest.raises(ValueError, match="exists already: choose .* replace it .force=True"):
        other.save(folder)
    assert isinstance(load(folder).kernel, K.SquaredExponential)
    other.save(folder, force=True)
    assert isinstance(load(folder).kernel, K.Matern12)
    (folder / "notes.txt").write_text("mine")
    for place in (folder, tmp_path):
        with pytest.raises(ValueError, match="is no saved model, so that it is not replaced"):
            model.save(place, force=True)
    assert (folder / "notes.txt").read_text() == "mine"
    file = tmp_path / "file"
    file.write_text("mine")
    with pytest.raises(ValueError, match="is no saved model, so that it is not replaced"):
        model.save(file, force=True)
    assert sorted(os.listdir(tmp_path)) == ["file", "model"]


def test_an_empty_folder_is_filled(model, tmp_path):
    (tmp_path / "model").mkdir()
    model.save(tmp_path / "model")
    assert load(tmp_path / "model").task_names == model.task_names


@pytest.mark.parametrize("folder", ["", 3, None])
def test_no_path(model, folder):
    with pytest.raises(ValueError, match="must be the path of a folder"):
        model.save(folder)


def test_a_full_disk_leaves_nothing(model, tmp_path):
    """A limit on the size of files stands in for the disk's end."""
    model.save(tmp_path / "first")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    for place, force in [("new/model", False), ("first", True)]:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
        try:
            with pytest.raises(OSError, match="File too large"):
                model.save(tmp_path / place, force=force)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert os.listdir(tmp_path) == ["first"]
    assert load(tmp_path / "first").task_names == model.task_names


# Damage ----------------------------------------------------------------------------------------


def edit(folder, change):
    """Change the JSON document of a saved model."""
    document = json.loads((folder / DOCUMENT).read_text())
    change(document)
    (folder / DOCUMENT).write_text(json.dumps(document))


def truncate(path):
    path.write_bytes(path.read_bytes()[:-40])


DAMAGES = {
    "cut document": (lambda f: truncate(f / DOCUMENT), "model.json cannot be read"),
    "cut arrays": (lambda f: truncate(f / ARRAYS), "arrays.npz is not what was written"),
    "no arrays": (lambda f: (f / ARRAYS).unlink(), "arrays.npz cannot be read"),
    "deep document": (
        lambda f: (f / DOCUMENT).write_text("[" * 10**6),
        "model.json cannot be read",
    ),
    "no version": (lambda f: edit(f, lambda d: d.pop("format_version")), "format_version is None"),
    "a class": (lambda f: edit(f, lambda d: d.update({"class": "os"})), "its class is 'os'"),
    "no kernel": (lambda f: edit(f, lambda d: d.pop("kernel")), "KeyError: 'kernel'"),
    "a kernel": (
        lambda f: edit(f, lambda d: d["kernel"]["tree"].update({"class": "Popen"})),
        "KeyError: 'Popen'",
    ),
    "a fact": (
        lambda f: edit(f, lambda d: d["kernel"]["tree"]["facts"].update(shell=True)),
        "TypeError: .*shell",
    ),
    "a transform": (
        lambda f: edit(f, lambda d: d["parameters"][0]["transform"].update({"class": "eval"})),
        "KeyError: 'eval'",
    ),
    "an array": (lambda f: edit(f, lambda d: d["data"].update(X="Z")), "KeyError: 'Z'"),
    "an option": (
        lambda f: edit(f, lambda d: d["options"].update(learning="magic")),
        "ValueError: learning='magic' is not known",
    ),
    "swapped": (
        lambda f: edit(f, lambda d: d["parameters"][2].update(value=d["parameters"][3]["value"])),
        "ValueError: parameter 2 and its unconstrained value disagree",
    ),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_damage_is_told(model, tmp_path, name):
    do, message = DAMAGES[name]
    model.save(tmp_path / "model")
    do(tmp_path / "model")
    with pytest.raises(ValueError, match=f"model is damaged \\({message}"):
        load(tmp_path / "model")


def test_what_is_no_saved_model(model, tmp_path):
    with pytest.raises(ValueError, match="nowhere is not there: pass the folder that a model was"):
        load(tmp_path / "nowhere")
    with pytest.raises(ValueError, match="holds no saved model: there is no model.json in it"):
        load(tmp_path)
    (tmp_path / DOCUMENT).write_text('{"weights": []}')
    with pytest.raises(ValueError, match="holds no saved model: its model.json is not of this"):
        load(tmp_path)
    with pytest.raises(ValueError, match="model.json is a file, no folder"):
        load(tmp_path / DOCUMENT)


def test_a_newer_format_asks_for_an_upgrade(model, tmp_path):
    model.save(tmp_path / "model")
    edit(tmp_path / "model", lambda d: d.update(format_version=99))
    with pytest.raises(ValueError, match="format 99 by a newer gpflow_cool.*upgrade gpflow_cool"):
        load(tmp_path / "model")


class Bomb:
    """Runs code when it is unpickled."""

    def __reduce__(self):
        return (os.mkdir, ("exploded",))


def test_loading_runs_no_code(model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model.save("model")
    arrays = {"X": np.array([Bomb()], dtype=object)}
    np.savez(tmp_path / "bomb.npz", allow_pickle=True, **arrays)
    for raw in ((tmp_path / "bomb.npz").read_bytes(), pickle.dumps(Bomb())):
        (tmp_path / "model" / ARRAYS).write_bytes(raw)
        trust(tmp_path / "model", raw)
        with pytest.raises(ValueError, match="model is damaged"):
            load("model")
    assert not os.path.exists("exploded")


def trust(folder, raw):
    """Make the document vouch for other arrays, as somebody with bad intent would."""
    edit(folder, lambda d: d.update(arrays_sha256=hashlib.sha256(raw).hexdigest()))


def test_compressed_arrays_are_refused(model, tmp_path):
    folder = tmp_path / "model"
    model.save(folder)
    with np.load(folder / ARRAYS) as arrays:
        np.savez_compressed(folder / ARRAYS, **arrays)
    assert zipfile.ZipFile(folder / ARRAYS).infolist()[0].compress_type == zipfile.ZIP_DEFLATED
    trust(folder, (folder / ARRAYS).read_bytes())
    with pytest.raises(ValueError, match="an array is compressed"):
        load(folder)


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
        CoolMTGP((X, Y * [1.0, 1.0, 1000.0]), K.SquaredExponential()).save(tmp_path / "model")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load(tmp_path / "model")
