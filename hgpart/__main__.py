"""The `hgpart` command, as ``python -m hgpart``."""

from hgpart.cli import main

if __name__ == "__main__":
    main()
