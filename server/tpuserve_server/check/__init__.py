"""`--check_config`: finds the problems of a configuration without serving."""
