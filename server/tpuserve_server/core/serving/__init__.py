"""Answers of requests: the service, the versions that requests hold, the checks of inputs, and budgets of memory."""
