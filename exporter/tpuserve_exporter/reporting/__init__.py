"""Reports of an export's progress and outcome, for users and for programs."""
