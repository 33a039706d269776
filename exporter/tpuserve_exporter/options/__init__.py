"""The options of one export, from the command line or from Python."""
