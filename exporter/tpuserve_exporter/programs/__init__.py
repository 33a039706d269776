"""Device programs: a model lowered for fixed shapes, with its weights beside it, for PJRT to run."""
