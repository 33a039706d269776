"""How an export goes and what came of it, told to people and to programs."""
