"""`python -m placet`, and so `torchrun ... -m placet train RECIPE`."""

from placet.job.cli import main

if __name__ == "__main__":
    main()
