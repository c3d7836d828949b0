"""adjoint"""
