"""Operations: demo, benchmarks, unit files, documents."""
