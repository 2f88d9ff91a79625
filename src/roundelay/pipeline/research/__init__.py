"""Sweeps, figures and advice: many simulations on Spark, and what they show."""
