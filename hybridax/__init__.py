"""hybridax: adjoint sensitivities of hybrid neural ODEs in JAX."""

from .adjoint.audit import VJPMismatch, check_gradients, check_vjp, explain_gradient
from .adjoint.backsolve import BacksolveAdjoint
from .adjoint.direct import DirectAdjoint
from .adjoint.discrete import DiscreteAdjoint
from .adjoint.forward_sensitivity import ForwardSensitivity
from .adjoint.gauss import GaussAdjoint
from .adjoint.interpolating import InterpolatingAdjoint
from .adjoint.quadrature import QuadratureAdjoint
from .adjoint.sensealg import SensitivityMethod
from .adjoint.sensitivities import AdjointDiagnostics, AdjointSensitivities, adjoint_sensitivities
from .adjoint.solve import solve
from .adjoint.vjp import FiniteDifferenceVJP, HandWrittenVJP, HostVJP, JaxVJP
from .models import MLP, CheckpointError, FitError, FitResult, HybridRHS, fit, load_checkpoint, save_checkpoint
from .solvers.callbacks import (
    CallbackSet,
    ContinuousCallback,
    DiscreteCallback,
    PeriodicCallback,
    PresetTimeCallback,
)
from .solvers.explicit import RK4, Euler
from .solvers.integrate import RetCode
from .solvers.problem import ODEProblem
from .solvers.solution import Solution, SolveError
from .solvers.tsit5 import Tsit5

__all__ = [
    "MLP",
    "RK4",
    "AdjointDiagnostics",
    "AdjointSensitivities",
    "BacksolveAdjoint",
    "CallbackSet",
    "CheckpointError",
    "ContinuousCallback",
    "DirectAdjoint",
    "DiscreteAdjoint",
    "DiscreteCallback",
    "Euler",
    "FiniteDifferenceVJP",
    "FitError",
    "FitResult",
    "ForwardSensitivity",
    "GaussAdjoint",
    "HandWrittenVJP",
    "HostVJP",
    "HybridRHS",
    "InterpolatingAdjoint",
    "JaxVJP",
    "ODEProblem",
    "PeriodicCallback",
    "PresetTimeCallback",
    "QuadratureAdjoint",
    "RetCode",
    "SensitivityMethod",
    "Solution",
    "SolveError",
    "Tsit5",
    "VJPMismatch",
    "adjoint_sensitivities",
    "check_gradients",
    "check_vjp",
    "explain_gradient",
    "fit",
    "load_checkpoint",
    "save_checkpoint",
    "solve",
]
