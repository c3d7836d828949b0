"""Audits of gradients: backends against differences, methods against one another, and leaves that get none."""

from .compare_methods import GradientsReport, MethodCheck, check_gradients
from .compare_vjp import LeafCheck, VJPMismatch, VJPReport, check_vjp
from .explain import CapturedConstant, GradientExplanation, ZeroGradient, explain_gradient

__all__ = [
    "CapturedConstant",
    "GradientExplanation",
    "GradientsReport",
    "LeafCheck",
    "MethodCheck",
    "VJPMismatch",
    "VJPReport",
    "ZeroGradient",
    "check_gradients",
    "check_vjp",
    "explain_gradient",
]
