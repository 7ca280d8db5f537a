"""Text that the source's users wrote, such as defaults, checks and computed columns: parsed, and judged before the
target evaluates any of it as the sink's role. The same for code of other roles that the target has already.
"""
