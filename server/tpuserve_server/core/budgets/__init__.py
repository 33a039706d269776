"""Budgets: bounds on the memory that requests take, charged before the memory is allocated."""
