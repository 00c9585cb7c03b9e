"""What a model of the tasks in another order is compared by."""

import gpflow
import numpy as np
from numpy.testing import assert_allclose

from gpflow_cool import CoolMTGP
from gpflow_cool.studies.partition import Partition
from gpflow_cool.studies.permutation import KINDS, InOrder, compare, evaluate


def test_covariances_are_mapped_back_to_the_tasks_own_order(rng):
    X, Y = rng.normal(size=[20, 2]), rng.normal(size=[20, 3])
    part = Partition(X, Y, X[:5], Y[:5])
    order, scale = np.array([2, 0, 1]), np.array([1.0, 2.0, 3.0])
    model = CoolMTGP((X, Y[:, order]), gpflow.kernels.Linear())
    found = evaluate(model, part, order, scale)
    C = model.task_covariance().numpy()
    for i, t in enumerate(order):
        for j, u in enumerate(order):
            assert_allclose(found.C[t, u], C[i, j] * scale[t] * scale[u])
        assert_allclose(found.mean[:, t], model.predict_f(X[:5])[0].numpy()[:, i])
    joint = model.predict_log_density((X[:5], Y[:5][:, order]), full_output_cov=True)
    assert_allclose(found.nlpd, -np.mean(joint) / 3)


def test_orders_are_compared_in_pairs(rng):
    results = [
        InOrder(*rng.normal(size=[3, 2, 2]), rmse, nlpd, objective)
        for rmse, nlpd, objective in ((0.5, 1.0, -3.0), (0.7, 0.8, -5.0), (0.3, 2.0, -4.0))
    ]
    averaged = results[0]._replace(rmse=0.4, nlpd=0.9)
    found = compare(results, averaged)
    norm = np.linalg.norm
    pairs = [(results[i], results[j]) for i, j in ((0, 1), (0, 2), (1, 2))]
    distances = [norm(a.C - b.C) / np.sqrt(norm(a.C) * norm(b.C)) for a, b in pairs]
    assert_allclose(found["C_distance"], np.mean(distances))
    assert_allclose(found["C_distance_max"], max(distances))
    differences = [np.sqrt(np.mean((a.mean - b.mean) ** 2)) for a, b in pairs]
    assert_allclose(found["mean_difference"], np.mean(differences))
    assert found["objective_range"] == 2.0
    assert_allclose([found[f"rmse_{kind}"] for kind in KINDS], [0.5, 0.5, 0.3, 0.7, 0.4])
    assert_allclose(found["nlpd_orders"], 3.8 / 3)
