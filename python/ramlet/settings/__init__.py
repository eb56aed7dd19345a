"""Settings, each declared once beside its owner, and every face of them made from that.

declared.py       what a declaration is, and what follows from it; kinds.py how values are read and checked
yaml_settings.py  a class of settings from YAML; yaml_nodes.py a file as nodes, every mistake with its line
owners.py         where the classes are; tables.py the tables in docs/; names.py what a wrong name meant
"""
