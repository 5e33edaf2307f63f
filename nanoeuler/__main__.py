"""``python -m nanoeuler``: the command line."""

from nanoeuler.cli.main import main

if __name__ == "__main__":
    main()
