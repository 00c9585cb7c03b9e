"""Axes of figures that nothing else knows."""

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def own_axes(
    size: tuple[float, float], layout: Literal["constrained", "compressed"] = "constrained"
) -> "Axes":
    """Axes of a new figure that pyplot does not know."""
    from matplotlib.figure import Figure

    return Figure(figsize=size, layout=layout).subplots()
