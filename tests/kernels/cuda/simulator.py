"""`NUMBA_ENABLE_CUDASIM=1 python -m tests.kernels.cuda.simulator [ROUND]`: checks at small shapes, as JSON.

All of them, or with the mutations of a round the checks that must notice.
"""

import json
import sys

from tests.kernels.cuda.mutations import MUTATIONS, apply


def main() -> None:
    mutations = [mutation for mutation in MUTATIONS.values() if sys.argv[1:] == [str(mutation.round)]]
    apply(mutations)
    # Imported late: a mutation must come before.
    from tests.kernels.cuda.checks import CHECKS, SMALL

    wanted = [check for mutation in mutations for check in mutation.checks] or list(CHECKS)
    sys.stdout.write(json.dumps({name: CHECKS[name](SMALL) for name in dict.fromkeys(wanted)}) + "\n")


if __name__ == "__main__":
    main()
