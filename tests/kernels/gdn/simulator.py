"""`NUMBA_ENABLE_CUDASIM=1 python -m tests.kernels.gdn.simulator [MUTATION]`: all checks at small shapes, as JSON."""

import json
import sys

from tests.kernels.gdn.mutations import MUTATIONS, apply


def main() -> None:
    if len(sys.argv) > 1 and sys.argv[1]:
        apply(MUTATIONS[sys.argv[1]])
    # Imported late: a mutation must come before.
    from tests.kernels.gdn.device_checks import CHECKS, SMALL

    wanted = MUTATIONS[sys.argv[1]].checks if len(sys.argv) > 1 and sys.argv[1] else tuple(CHECKS)
    sys.stdout.write(json.dumps({name: CHECKS[name](SMALL) for name in wanted}) + "\n")


if __name__ == "__main__":
    main()
