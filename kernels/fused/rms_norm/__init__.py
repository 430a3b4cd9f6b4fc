"""RMSNorm of rows, with the sum into the residual stream before it."""
