"""Generators against the laws that they draw from; the ARFF reader against SciPy's."""

import os
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.io import arff
from scipy.stats import chi2, kstest, multivariate_normal, truncnorm

from gpflow_cool.datasets import (
    MULAN_TARGETS,
    clustered_two_task,
    load_mulan,
    low_rank_synthetic,
    read_arff,
    two_task_at,
    two_task_mean,
    uniform_two_task,
)

SIGMA = np.array([[0.1, 0.05], [0.05, 0.1]])


def test_two_task_mean_equals_cosine_and_sine():
    X = np.array([[0.0], [0.125], [0.25], [0.5], [0.75]])
    half = np.sqrt(0.5)
    assert_allclose(two_task_mean(X), [[1, 0], [half, half], [0, 1], [-1, 0], [0, -1]], atol=1e-15)


@pytest.mark.parametrize("draw", [clustered_two_task, uniform_two_task])
def test_two_task_noise_has_the_stated_law(draw):
    data = draw(num_rows=20000, seed=3)
    assert_array_equal(data.noise_covariance, SIGMA)
    truth = np.hstack([np.cos(2 * np.pi * data.X), np.sin(2 * np.pi * data.X)])
    noise = data.Y - truth
    assert_allclose(noise.mean(axis=0), 0.0, atol=0.01)  # about four standard errors
    assert_allclose(np.cov(noise.T), SIGMA, atol=0.005)
    distance = np.einsum("ni,ij,nj->n", noise, np.linalg.inv(SIGMA), noise)
    assert kstest(distance, chi2(2).cdf).pvalue > 0.01


def test_clustered_inputs_are_two_truncated_normals():
    data = clustered_two_task(num_rows=5001, seed=5, spread=0.2)
    x = data.X[:, 0]
    assert x.min() > 0.0 and x.max() < 1.0
    for group, centre, size in [(x[:2501], 0.25, 2501), (x[2501:], 0.75, 2500)]:
        assert len(group) == size
        law = truncnorm(-centre / 0.2, (1 - centre) / 0.2, loc=centre, scale=0.2)
        assert kstest(group, law.cdf).pvalue > 0.01


def test_clustered_inputs_leave_gaps_by_default():
    x = clustered_two_task().X[:, 0]
    assert len(x) == 40
    assert not np.any((x > 0.45) & (x < 0.55))
    assert np.sum(x < 0.5) == 20


def test_uniform_inputs_are_uniform():
    assert kstest(uniform_two_task(5000, seed=2).X[:, 0], "uniform").pvalue > 0.01


def test_two_task_at_keeps_inputs_and_repeats_with_its_seed():
    X = np.array([[0.5], [0.5], [0.1]])
    first, again, other = two_task_at(X, 1), two_task_at(X, 1), two_task_at(X, 2)
    assert_array_equal(first.X, X)
    assert_array_equal(first.Y, again.Y)
    assert np.all(first.Y != other.Y)
    assert np.all(first.Y[0] != first.Y[1])


@pytest.mark.parametrize("draw", [clustered_two_task, uniform_two_task, low_rank_synthetic])
def test_draws_repeat_with_their_seed(draw):
    first, again, other = draw(seed=4), draw(seed=4), draw(seed=5)
    for a, b in zip(first, again, strict=True):
        assert_array_equal(a, b)
    assert np.all(first.Y != other.Y)


@pytest.mark.parametrize("rank", [5, 10, 15])
def test_low_rank_synthetic_has_the_papers_sizes_and_ranks(rank):
    data = low_rank_synthetic(rank, seed=1)
    assert data.X.shape == (200, 25) and data.Y.shape == (200, 15)
    for matrix in (data.C, data.Sigma):
        lam = np.linalg.eigvalsh(matrix)
        assert np.sum(lam > 1e-10 * lam[-1]) == rank
        assert_array_equal(matrix, matrix.T)
    assert_allclose(np.std(data.X), 0.2, rtol=0.05)
    # Expected traces: E tr C = T R and E tr Sigma = 0.09 T R, each chi-square with T R degrees.
    interval = chi2(15 * rank).interval(0.9999)
    assert interval[0] < np.trace(data.C) < interval[1]
    assert interval[0] < np.trace(data.Sigma) / 0.09 < interval[1]


@pytest.mark.parametrize("num_rows, num_tasks, num_inputs", [(1, 1, 1), (5, 3, 2), (3, 2, 6)])
def test_low_rank_synthetic_follows_its_kronecker_law(num_rows, num_tasks, num_inputs):
    """Under vec(Y) ~ N(0, C x K + Sigma x I) the Mahalanobis distance is chi-square (N T)."""
    sizes = {"num_rows": num_rows, "num_tasks": num_tasks, "num_inputs": num_inputs}
    distances = []
    for seed in range(400):
        data = low_rank_synthetic(num_tasks, seed, **sizes)  # full rank: an inverse exists
        S = np.kron(data.C, data.X @ data.X.T) + np.kron(data.Sigma, np.eye(num_rows))
        y = data.Y.ravel(order="F")
        distances.append(y @ np.linalg.solve(S, y))
    assert kstest(distances, chi2(num_rows * num_tasks).cdf).pvalue > 0.01


def test_low_rank_synthetic_noise_scale():
    quiet = low_rank_synthetic(3, seed=2, noise_scale=0.0)
    assert_array_equal(quiet.Sigma, 0.0)
    # Without noise the targets lie in the span of X, and task space in the span of C.
    fit = quiet.X @ np.linalg.lstsq(quiet.X, quiet.Y, rcond=None)[0]
    assert_allclose(fit, quiet.Y, atol=1e-10)
    loud = low_rank_synthetic(3, seed=2, noise_scale=0.6)
    assert_allclose(loud.Sigma, 4.0 * low_rank_synthetic(3, seed=2).Sigma, rtol=1e-12)
    density = multivariate_normal(np.zeros(15), loud.Sigma, allow_singular=True)
    assert np.all(np.isfinite(density.logpdf(loud.Y - quiet.Y)))  # -inf outside the span


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: clustered_two_task(0), "num_rows=0 must be at least 1"),
        (lambda: clustered_two_task(spread=0.0), "spread=0.0 is a standard deviation"),
        (lambda: uniform_two_task(0), "num_rows=0 must be at least 1"),
        (lambda: low_rank_synthetic(0), "rank=0 must be at least 1"),
    ],
)
def test_generators_refuse_impossible_sizes(call, message):
    with pytest.raises(ValueError, match=message):
        call()


SMALL = r"""% a comment, with 1,2,3 in it
@RELATION 'small set'

@attribute plain numeric
@ATTRIBUTE 'single quotes' REAL
@Attribute "'both'l1" INTEGER
@attribute	'it\'s 50% {x}'	numeric
@attribute spaced{0, 1}
@attribute LBL+a numeric
@data
% another comment
1,2,3,4,0,5

 -1e3 , 2.5 ,?,4,1, .5
0,0,0,'7',1,1E-3
"""
SMALL_NAMES = ("plain", "single quotes", "'both'l1", "it's 50% {x}", "spaced", "LBL+a")
SMALL_TABLE = [[1, 2, 3, 4, 0, 5], [-1000, 2.5, np.nan, 4, 1, 0.5], [0, 0, 0, 7, 1, 0.001]]


@pytest.fixture
def small(tmp_path):
    """Path of a file with every feature of ARFF that is supported, named as one of the ten."""
    path = tmp_path / "slump.arff"
    path.write_text(SMALL)
    return path


@pytest.mark.parametrize("ending", ["\n", "\r\n"])
def test_read_arff(tmp_path, ending):
    path = tmp_path / "file.arff"
    path.write_bytes(b"\xef\xbb\xbf" + SMALL.replace("\n", ending).encode())
    names, table = read_arff(path)
    assert names == SMALL_NAMES
    assert_array_equal(table, SMALL_TABLE)


def test_targets_are_the_last_columns(small):
    by_name = load_mulan("slump", small.parent)
    for data in (by_name, load_mulan(small), load_mulan("slump.arff", str(small.parent))):
        assert_array_equal(data.X, np.array(SMALL_TABLE)[:, :3])
        assert_array_equal(data.Y, np.array(SMALL_TABLE)[:, 3:])
        assert data.input_names == SMALL_NAMES[:3]
        assert data.target_names == SMALL_NAMES[3:]
    other = small.rename(small.with_name("other.arff"))
    assert_array_equal(load_mulan(other, num_targets=1).Y, np.array(SMALL_TABLE)[:, 5:])


def test_missing_files_and_unknown_names(small):
    folder = small.parent
    with pytest.raises(ValueError, match="Pass folder, where slump.arff is"):
        load_mulan("slump")
    with pytest.raises(ValueError, match="'slumps' is not a set that is known.*andro, .*slump"):
        load_mulan("slumps", folder)
    with pytest.raises(FileNotFoundError, match="nowhere' is not a folder"):
        load_mulan("slump", folder / "nowhere")
    with pytest.raises(FileNotFoundError, match="edm.arff is not there. Its folder holds slump.ar"):
        load_mulan("edm", folder)
    other = small.rename(folder / "other.arff")
    with pytest.raises(ValueError, match="other.arff are targets is not known: pass num_targets"):
        load_mulan(other)
    with pytest.raises(ValueError, match="num_targets=6, but .* has 6 columns"):
        load_mulan(other, num_targets=6)
    with pytest.raises(ValueError, match="num_targets=0, but .* has 6 columns"):
        load_mulan(other, num_targets=0)


HEADER = "@relation r\n@attribute a numeric\n@attribute b numeric\n"


@pytest.mark.parametrize(
    "text, message",
    [
        (HEADER + "@data\n1,2\n1,2,3\n", "line 6: 3 values, but 2 columns are declared"),
        (HEADER + "@data\n1,2\n1,\n", "line 6: column 'b' has '', which is not a number"),
        (HEADER + "@data\n% note\n\nx,2\n", "line 7: column 'a' has 'x', which is not a number"),
        (HEADER + "@data\n{1 2}\n", "line 5: the row is sparse"),
        (HEADER + "@data\n", "no row after @data"),
        (HEADER, "ends before @data"),
        ("", "ends before @data"),
        (
            "@relation r\n@data\n1\n",
            "line 2: expected @relation, @attribute or, after these, @data",
        ),
        ("a,b\n1,2\n", "line 1: expected .*got 'a,b'. Is this an ARFF file?"),
        ("@relation r\n@attribute c {red, blue}\n", "line 2: column 'c' is declared '{red, blue}'"),
        ("@relation r\n@attribute c string\n", "line 2: column 'c' is declared 'string'"),
        ("@relation r\n@attribute c\n", "line 2: cannot find a name and a type"),
    ],
)
def test_damaged_files_name_the_line(tmp_path, text, message):
    path = tmp_path / "file.arff"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        read_arff(path)


# The real files are no part of the project. Where GPFLOW_COOL_DATA names their folder, or they lie
# beside the checkout, they are read as well.
BESIDE = Path(__file__).parents[2] / "shared" / "data" / "mulan"
REAL_FILES = sorted(Path(os.environ.get("GPFLOW_COOL_DATA") or BESIDE).glob("*.arff"))
SIZES = {  # rows, inputs, targets, as the paper's table has them
    "andro": (49, 30, 6),
    "atp1d": (337, 411, 6),
    "atp7d": (296, 411, 6),
    "edm": (154, 16, 2),
    "enb": (768, 8, 2),
    "oes10": (403, 298, 16),
    "oes97": (334, 263, 16),
    "scm1d": (9803, 280, 16),
    "scm20d": (8966, 61, 16),
    "slump": (103, 7, 3),
}


def test_number_of_targets_is_the_papers():
    assert {name: size[2] for name, size in SIZES.items()} == MULAN_TARGETS


@pytest.mark.slow
@pytest.mark.parametrize("path", [None, *REAL_FILES], ids=lambda p: p.stem if p else "generated")
def test_values_equal_scipys_reader(tmp_path, rng, path):
    if path is None:
        path = tmp_path / "slump.arff"
        rows = "\n".join(",".join(map(str, row)) for row in rng.standard_normal([103, 10]))
        head = "".join(f"@attribute 'column {i}' numeric\n" for i in range(10))
        path.write_text(f"@relation generated\n{head}@data\n{rows}\n")
    data = load_mulan(path.stem, path.parent)
    records, meta = arff.loadarff(path)
    expected = np.array(records.tolist(), dtype=float)
    assert (*data.X.shape, data.Y.shape[1]) == SIZES[path.stem]
    assert_array_equal(np.hstack([data.X, data.Y]), expected)
    names = [name.strip('"') for name in meta.names()]  # SciPy leaves double quotes on
    assert list(data.input_names + data.target_names) == names
