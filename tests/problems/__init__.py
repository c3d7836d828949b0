"""Problems with known gradients: the oracles and the acceptance cases, data in tests/oracles."""
