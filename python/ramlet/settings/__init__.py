"""How a setting is read: amounts, names, YAML with its lines."""
