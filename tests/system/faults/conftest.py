"""Collection settings of the long fault tests."""

collect_ignore = ["atheris_readers.py"]  # needs atheris, see its docstring
