"""Terms that all rooms share: types, errors, deadlines, settings, and the interfaces at the seams."""
