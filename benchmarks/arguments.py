"""The numbers that a benchmark takes from its command line."""

import argparse


def numbers(program: str, doc: str | None, **defaults: int) -> list[int]:
    """Return the arguments, all of which may be left out. Other arguments end the process with a message.

    program:   the module, for the help.
    doc:       its docstring, which is the help.
    defaults:  the names and the defaults of its arguments, in their order.
    """
    parser = argparse.ArgumentParser(prog=f"python -m {program}", description=doc)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    for name, default in defaults.items():
        parser.add_argument(name, nargs="?", type=int, default=default, help=f"default: {default:,}")
    return list(vars(parser.parse_args()).values())
