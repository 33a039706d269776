"""Device programs: a model lowered for fixed shapes, with separate weights, to run with PJRT."""
