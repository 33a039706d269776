"""Examples with expected answers: ask a written version about them, and judge and show its answers."""
