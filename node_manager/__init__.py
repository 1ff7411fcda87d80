"""xce-node-manager: the supervisor of one host of an XCE compute cluster."""

__version__ = "0.1.0"
