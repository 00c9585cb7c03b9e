"""
Import this before TensorFlow: members of protocols are listed once, which saves a twentieth.

TensorFlow asks several times per operation whether something is an instance of a protocol. Python
3.11 then lists the protocol's members anew; Python 3.12 keeps them, and does not need this.
"""

import functools
import typing

typing._get_protocol_attrs = functools.cache(typing._get_protocol_attrs)
