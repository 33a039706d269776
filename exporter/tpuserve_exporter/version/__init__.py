"""The files of a version: writers, readers and fingerprints."""
