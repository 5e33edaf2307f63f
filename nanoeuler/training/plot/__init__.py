"""Loss curves: as PNG and as text, with nothing but NumPy."""

from nanoeuler.training.plot.chart import write_png
from nanoeuler.training.plot.curves import Curve, loss_curves
from nanoeuler.training.plot.terminal import terminal_plot

__all__ = ["Curve", "loss_curves", "terminal_plot", "write_png"]
