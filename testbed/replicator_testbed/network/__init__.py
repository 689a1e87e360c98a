"""Servers and clients on loopback that a test commands: proxies, receivers, object stores, a browser.

Requests of the product come in; what arrived, or what a test wants to go wrong, comes out.
"""

__all__: list[str] = []
