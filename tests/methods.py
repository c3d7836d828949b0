"""The sensitivity methods under test, by name."""

import hybridax as hx

#: methods with a reverse pass of their own
METHODS = {
    "backsolve": hx.BacksolveAdjoint(),
    "backsolve_without_checkpoints": hx.BacksolveAdjoint(checkpointing=False),
    "interpolating": hx.InterpolatingAdjoint(),
    "quadrature": hx.QuadratureAdjoint(),
    "gauss": hx.GaussAdjoint(),
    "discrete": hx.DiscreteAdjoint(),
}
#: ... and those that differentiate the loop itself
ALL = {**METHODS, "forward": hx.ForwardSensitivity(), "direct": hx.DirectAdjoint()}
CONTINUOUS = [name for name in METHODS if name != "discrete"]
#: one of each class
KINDS = [name for name in METHODS if name != "backsolve_without_checkpoints"]
#: one that solves the adjoint equation and one that transposes steps, for relations in which methods hardly differ
TWO = ["interpolating", "discrete"]
