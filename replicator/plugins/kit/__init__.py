"""Code that most plugins need and would otherwise write again."""

__all__: list[str] = []
