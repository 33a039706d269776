"""What runs models: TensorFlow on the CPU. Executors know the core and the messages alone."""
