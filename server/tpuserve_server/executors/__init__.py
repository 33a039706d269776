"""Executors, which run models: device programs, TensorFlow and LiteRT. They import only the server's core."""
