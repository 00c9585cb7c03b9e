"""
Read back what was saved: a folder with JSON and NumPy arrays, never pickle.

Loading a stranger's model runs none of their code: classes are looked up in tables of our models
and of GPflow's own kernels, mean functions and transforms. Of a kernel of your own class only the
values are saved: pass an object of the class to :func:`load`.
"""

import os
from typing import Any

from gpflow.kernels import Kernel
from gpflow.mean_functions import MeanFunction

from . import models  # noqa: F401, registers the classes
from .saving.folder import damaged, read_folder
from .saving.models import REGISTRY, restore
from .saving.modules import CustomModule, Reader

ESTIMATOR = "CoolMTGPRegressor"


def load(
    folder: str | os.PathLike[str],
    *,
    kernel: Kernel | None = None,
    mean_function: MeanFunction | None = None,
) -> Any:
    """
    Read a model or an estimator from the folder that its `save` wrote. No code in it is run.

    On the same machine, predictions equal those of the saved model to the last bit.

    >>> import gpflow_cool
    >>> model = gpflow_cool.load("model")  # doctest: +SKIP

    :param kernel: Needed for a kernel whose class is not GPflow's: an object of that class, with
        the structure of the saved one. It gets the saved values.
    :param mean_function: The same for a mean function.
    :raises ValueError: If the folder is not a saved model, is damaged, comes from a newer version,
        or needs `kernel` or `mean_function`.
    """
    content = read_folder(folder)
    name = content.document.get("class")
    if name == ESTIMATOR:
        from .table import estimator  # noqa: F401, registers it; only it needs scikit-learn
    if name not in REGISTRY:
        raise damaged(folder, f"its class is {name!r}")
    try:
        given = {"kernel": kernel, "mean_function": mean_function}
        return restore(content.document, Reader(content), given)
    except CustomModule as error:
        raise ValueError(f"{folder} cannot be loaded as it is: {error}.") from error
    except Exception as error:  # a document that was tampered with can lead to any
        raise damaged(folder, f"{type(error).__name__}: {error}") from error
