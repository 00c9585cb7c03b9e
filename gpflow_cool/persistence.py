"""
Save and load: a folder with JSON and NumPy arrays, never pickle.

Loading a stranger's model runs no code of theirs: classes are looked up in tables of GPflow's own
kernels, mean functions and transforms. A kernel of your own class is saved by its values alone;
pass an object of the class to :func:`load`.
"""

import os
from typing import Any

from gpflow.kernels import Kernel
from gpflow.mean_functions import MeanFunction

from .archive import Content, damaged, read_folder
from .restoring import RESTORERS, restore_model
from .saving import save
from .specification import CustomModule, Reader

__all__ = ["load", "save"]

ESTIMATOR = "CoolMTGPRegressor"


def load(
    folder: str | os.PathLike[str],
    *,
    kernel: Kernel | None = None,
    mean_function: MeanFunction | None = None,
) -> Any:
    """
    Read a model or an estimator that was saved with :func:`save`; no code in the folder is run.

    Predictions are those of the saved model, to the last bit on the same machine.

    >>> import gpflow_cool
    >>> model = gpflow_cool.load("model")  # doctest: +SKIP

    :param kernel: For a kernel of a class that is not GPflow's: an object of that class, with the
        same structure as the saved one, which takes on the saved values.
    :param mean_function: Likewise.
    :raises ValueError: If the folder is not a saved model, is damaged, comes from a newer version,
        or needs `kernel` or `mean_function`.
    """
    content = read_folder(folder)
    known = [*RESTORERS, ESTIMATOR]
    if content.document.get("class") not in known:
        raise damaged(folder, f"its class is {content.document.get('class')!r}")
    try:
        return restore(content, kernel=kernel, mean_function=mean_function)
    except CustomModule as error:
        raise ValueError(f"{folder} cannot be loaded as it is: {error}.") from error
    except Exception as error:  # whatever a document that was tampered with leads to
        raise damaged(folder, f"{type(error).__name__}: {error}") from error


def restore(
    content: Content, *, kernel: Kernel | None = None, mean_function: MeanFunction | None = None
) -> Any:
    """What :func:`load` makes of a folder's content."""
    reader = Reader(content)
    if content.document["class"] != ESTIMATOR:
        return restore_model(content.document, reader, kernel=kernel, mean_function=mean_function)
    from .estimator import CoolMTGPRegressor  # scikit-learn is needed for this one alone

    return CoolMTGPRegressor._restore(content.document, reader, kernel=kernel)
