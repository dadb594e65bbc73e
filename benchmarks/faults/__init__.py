"""Kills real processes of real jobs, and checks that every row of data is in the model once."""
