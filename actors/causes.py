"""What lies behind an error, in words for the log."""


def cause_chain(error: BaseException) -> list[str]:
    """An error and its causes, outermost first, for the log only."""
    chain: list[str] = []
    step: BaseException | None = error
    while step is not None and len(chain) < 8:
        chain.append(f"{type(step).__name__}: {step}"[:500])
        step = step.__cause__ or step.__context__
    return chain
