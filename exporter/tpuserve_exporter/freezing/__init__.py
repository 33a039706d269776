"""--freeze: what follows from the weights alone is computed at export, and what is of training alone goes."""
