"""HTTP for REST protocols: the parts of an exchange (exchange.py), and nothing of a protocol."""
