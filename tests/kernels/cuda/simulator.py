"""`NUMBA_ENABLE_CUDASIM=1 python -m tests.kernels.cuda.simulator [MUTATION]`: all checks at small shapes, as JSON."""

import json
import sys

from tests.kernels.cuda.mutations import MUTATIONS, apply


def main() -> None:
    mutation = MUTATIONS[sys.argv[1]] if len(sys.argv) > 1 and sys.argv[1] else None
    if mutation is not None:
        apply(mutation)
    # Imported late: a mutation must come before.
    from tests.kernels.cuda.checks import CHECKS, SMALL

    wanted = tuple(CHECKS) if mutation is None else mutation.checks
    sys.stdout.write(json.dumps({name: CHECKS[name](SMALL) for name in wanted}) + "\n")


if __name__ == "__main__":
    main()
