"""Access: clients, their roles and credentials, and the models that they may use. Knows no protocol and no host."""
