"""What one export was asked to do, whoever asks: the command line or Python."""
