"""Settings: each is declared once, next to the code it belongs to, and everything else is derived from that.

declared.py       what a declaration is and what is derived from it; kinds.py how values are parsed and checked
yaml_settings.py  reads a settings class from YAML; yaml_nodes.py parses the file, so errors have line numbers
owners.py         where the classes are; tables.py writes the tables in docs/; names.py suggests the correct name
"""
