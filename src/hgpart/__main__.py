"""The `hgpart` command, as ``python -m hgpart``."""

import os
import sys


def main() -> None:
    """Run the command; Ctrl-C while it is still being imported ends it as it does later."""
    try:
        from hgpart.cli import main as run_command
    except KeyboardInterrupt:
        sys.stderr.write("hgpart: interrupted\n")
        sys.stderr.flush()
        os._exit(130)  # as hgpart.cli.INTERRUPTED
    run_command()


if __name__ == "__main__":
    main()
