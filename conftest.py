"""The plugin itself comes with the installed package (entry point `pytest11`); this only adds pytest's own test kit."""

pytest_plugins = ["pytester"]
