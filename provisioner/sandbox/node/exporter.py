"""x"""
def counters_csv() -> str:
    return "# counters\n"
