"""Scripts are files, not a package: the tests load them by path."""

import importlib.util
from pathlib import Path

ROOT = Path(__file__).parent.parent


def load_script(name: str):
    spec = importlib.util.spec_from_file_location(f"script_{name}", ROOT / "scripts" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
