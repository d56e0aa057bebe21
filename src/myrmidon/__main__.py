"""Makes `python -m myrmidon` the same as `myrmidon`."""

from myrmidon.cli.main import main

if __name__ == "__main__":
    main()
