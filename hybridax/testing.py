"""Conformance checks for VJP backends and sensitivity methods that are written elsewhere."""

from .adjoint.audit.conformance import Conformance, ConformanceError, check_backend, check_sensealg

__all__ = ["Conformance", "ConformanceError", "check_backend", "check_sensealg"]
