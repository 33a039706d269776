"""ASGI calls that a front-end process passes to the engine process of its server, and which calls these are."""
