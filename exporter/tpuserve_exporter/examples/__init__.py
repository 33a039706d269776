"""Examples with expected answers: requests to a written version, verdicts, and their display in reports."""
