"""The state's way to joiners: striped over all holders at once, straight into the memory where it belongs.

A source answers requests for parts of its payload. A receiver asks all sources for parts, so that a slow one serves
less. A source that fails ends the whole copy with a RingError: the next generation starts it anew. Nothing of this
knows tensors; see `payload.Payload`.

    source = CopySource(host, secret)                   receiver = CopyReceiver([source.address, ...], secret)
    source.serve(replica.capture(), receivers=1)        incoming = replica.prepare(receiver.meta())
    source.close()                                      receiver.fetch(incoming.payload())
                                                        incoming.commit()
                                                        receiver.close()
"""

from .copy_receiver import CHUNK, CopyReceiver
from .copy_source import CopySource

__all__ = ["CHUNK", "CopyReceiver", "CopySource"]
