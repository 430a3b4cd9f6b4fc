"""`python -m neuron`: the command line."""

from neuron.api.cli import main

if __name__ == "__main__":
    main()
