"""HTTP for REST protocols: the parts of an exchange (exchange.py) that all protocols share."""
