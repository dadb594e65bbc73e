"""Pure array functions, compiled by Numba; nothing of ctrps is imported here."""
