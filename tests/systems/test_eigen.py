"""The system of a kernel matrix against dense algebra: values, and its gradient written by hand."""

import numpy as np
import pytest
import reference as ref
import tensorflow as tf
from numpy.testing import assert_allclose
from problems import assert_close

from gpflow_cool.systems.eigen import EigenSystem
from gpflow_cool.systems.products import KroneckerProduct

RATIOS = np.array([0.0, 0.03, 1.0, 40.0])


def covariance(rng, N, repeated=False):
    X = rng.normal(size=(N, 2))
    if repeated:
        X = X[rng.integers(0, max(1, N // 2), size=N)]
    return ref.squared_exponential(X, X, 1.3, 0.9)


class Case:
    """Matrices [n, n] whose Kronecker product is K, in the order of the rows, and targets."""

    def __init__(self, rng, sizes, T, copies=None, repeated=False, rank=None):
        self.matrices = [covariance(rng, n, repeated) for n in sizes]
        if rank is not None:
            F = rng.normal(size=(sizes[0], rank))
            self.matrices = [F @ F.T]
        N = int(np.prod(sizes))
        self.rows = rng.permutation(N)
        self.Y = rng.normal(size=(N, T) if copies is None else (copies, N, T))
        self.T = T

    def arrays(self):
        return [*self.matrices, self.Y]

    def system(self, *arrays):
        *matrices, Y = map(tf.convert_to_tensor, arrays)
        if len(matrices) == 1:
            return EigenSystem(matrices[0], Y)
        return EigenSystem(KroneckerProduct(tuple(matrices), self.rows), Y)

    def dense(self, r, *arrays):
        """G(r), the mean over completions, and log|r K + I|."""
        *matrices, Y = arrays
        K = matrices[0]
        if len(matrices) > 1:
            back = np.argsort(self.rows)
            for other in matrices[1:]:
                K = np.kron(K, other)
            K = K[np.ix_(back, back)]
        copies = Y.reshape(-1, len(K), self.T)
        systems = [ratio * K + np.eye(len(K)) for ratio in r]
        gram = [np.mean([y.T @ np.linalg.solve(S, y) for y in copies], axis=0) for S in systems]
        return np.stack(gram), np.array([np.linalg.slogdet(S)[1] for S in systems])


CASES = {
    "N1-T1": lambda rng: Case(rng, [1], 1),
    "N7-T1": lambda rng: Case(rng, [7], 1),
    "N7-T3": lambda rng: Case(rng, [7], 3),
    "N2-T5": lambda rng: Case(rng, [2], 5),
    "repeated rows": lambda rng: Case(rng, [8], 2, repeated=True),
    "rank one": lambda rng: Case(rng, [6], 2, rank=1),
    "zero kernel": lambda rng: Case(rng, [4], 2, rank=0),
    "completions": lambda rng: Case(rng, [5], 3, copies=4),
    "grid": lambda rng: Case(rng, [3, 4], 2),
    "grid of three axes, T > N": lambda rng: Case(rng, [2, 1, 3], 7),
    "completions on a grid": lambda rng: Case(rng, [3, 2], 2, copies=3),
}


@pytest.mark.parametrize("case", CASES)
def test_values_equal_dense(rng, case):
    p = CASES[case](rng)
    gram, log_det = p.system(*p.arrays())(tf.constant(RATIOS))
    expected = p.dense(RATIOS, *p.arrays())
    assert_close(gram, expected[0])
    assert_close(log_det, expected[1])


def total_gradient(system, r, A, a, tensors):
    """Gradient of sum_j <A_j, G(r_j)> + a_j log|r_j K + I|; `system` builds one of tensors."""
    with tf.GradientTape() as tape:
        tape.watch([r, *tensors])
        gram, log_det = system(*tensors)(r)
        total = tf.reduce_sum(A * gram) + tf.reduce_sum(a * log_det)
    return tape.gradient(total, [r, *tensors])


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_gradient_by_differences(rng, case, compiled):
    p, r = CASES[case](rng), np.array([0.2, 1.0, 3.0])
    A, a = rng.normal(size=(3, p.T, p.T)), rng.normal(size=3)
    compute = tf.function(total_gradient, autograph=False) if compiled else total_gradient
    arrays = [r, *p.arrays()]
    found = compute(p.system, tf.constant(r), A, a, [tf.constant(part) for part in arrays[1:]])
    for i, gradient in enumerate(found):
        direction = rng.uniform(-1.0, 1.0, size=arrays[i].shape)
        if 0 < i < len(arrays) - 1:  # a kernel matrix stays symmetric
            direction = direction + direction.T

        def along(h, i=i, direction=direction):
            moved = [part + h * direction if i == k else part for k, part in enumerate(arrays)]
            gram, log_det = p.dense(*moved)
            return np.sum(A * gram) + a @ log_det

        expected = ref.derivative(along, 1e-3)
        size = np.sum(np.abs(gradient * direction))
        assert_allclose(np.sum(gradient * direction), expected, rtol=1e-8, atol=1e-8 * size)


def test_single_precision_loses_the_digits_of_the_rotation_alone(rng):
    p = CASES["N7-T3"](rng)
    single = [part.astype(np.float32) for part in p.arrays()]
    system = p.system(*single)
    gram, log_det = system(tf.constant(RATIOS))
    expected = p.dense(RATIOS, *(part.astype(float) for part in single))
    assert gram.dtype == log_det.dtype == tf.float64
    assert system.spectrum.precision == np.finfo(np.float32).eps
    assert_close(gram, expected[0], rtol=1e-5)
    assert_close(log_det, expected[1], rtol=1e-5)
    weights = rng.normal(size=(4, 3, 3)), rng.normal(size=4)
    doubles = [tf.constant(part, tf.float64) for part in single]
    exact = total_gradient(p.system, tf.constant(RATIOS), *weights, doubles)
    rough = total_gradient(p.system, tf.constant(RATIOS), *weights, list(map(tf.constant, single)))
    assert [part.dtype for part in rough] == [tf.float64, tf.float32, tf.float32]
    for one, other in zip(rough, exact, strict=True):
        assert_close(one, other, rtol=1e-4)


def test_one_graph_serves_any_number_of_rows(rng):
    shapes = [tf.TensorSpec([None, None], tf.float64), tf.TensorSpec([None, 2], tf.float64)]

    @tf.function(autograph=False, input_signature=shapes)
    def values_and_gradient(K, Y):
        r = tf.constant([0.5, 3.0], tf.float64)
        with tf.GradientTape() as tape:
            tape.watch([K, Y])
            gram, log_det = EigenSystem(K, Y, python_callback=True)(r)
            total = tf.reduce_sum(gram) + tf.reduce_sum(log_det)
        return gram, log_det, *tape.gradient(total, [K, Y])

    for N in (1, 6, 9):
        p = Case(rng, [N], 2)
        found = values_and_gradient(*p.arrays())
        r = tf.constant([0.5, 3.0], tf.float64)
        expected = p.dense(r.numpy(), *p.arrays())
        ones = np.ones((2, 2, 2)), np.ones(2)
        eager = total_gradient(p.system, r, *ones, list(map(tf.constant, p.arrays())))
        for one, other in zip(found, [*expected, *eager[1:]], strict=True):
            assert_close(one, other)


@pytest.mark.parametrize("case", ["N7-T3", "grid"])
def test_blocks_of_the_inverse(rng, case):
    p = CASES[case](rng)
    system, r = p.system(*p.arrays()), 1.7
    N = p.Y.shape[0]
    d = system.spectrum.shrinkage(tf.constant([r], tf.float64))[0]
    identity = Case.dense(p, [r], *p.matrices, np.eye(N)[:, : p.T])[0]  # a corner of the inverse
    rows = np.arange(p.T)[None]
    assert_close(system.inverse_blocks(d, rows)[0], identity[0])
    singles = system.inverse_blocks(d, np.arange(N)[:, None])
    blocks = system.inverse_blocks(d, np.arange(N)[None])[0]
    assert_close(singles[:, 0, 0], tf.linalg.diag_part(blocks))
    assert_close(system.solved_targets(tf.ones_like(d)), p.Y)
