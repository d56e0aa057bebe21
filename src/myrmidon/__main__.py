"""`python -m myrmidon` is `myrmidon`."""

from myrmidon.cli.main import main

if __name__ == "__main__":
    main()
