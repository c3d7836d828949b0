"""adjoint/vjp"""
