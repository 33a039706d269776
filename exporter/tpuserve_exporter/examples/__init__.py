"""Inputs as users have them, asked of a written version: what it answers, and whether that is what they expect."""
