"""Packets: all records of a small message in one record.

Flower's server handles each object of a message in a request of its own, for the sender and for the receiver.
A signed task has ten objects; in a packet it has three. Large messages are sent as they are: their arrays are
uploaded once for all sites.
"""

from flwr.app import ArrayRecord, ConfigRecord, RecordDict
from flwr.common.serde import recorddict_from_proto, recorddict_to_proto
from flwr.proto.recorddict_pb2 import RecordDict as Proto

from fedmcc.deployment.flower.records import PACKET, RECORD_NAMES, UnreadableError

MAX_PACKET = 2**18  # bytes
CONTENT = "content"


def pack(content: RecordDict) -> RecordDict:
    """A small content as a packet; a larger one is returned as it is."""
    arrays = [
        each for record in content.values() if isinstance(record, ArrayRecord) for each in record.values()
    ]
    if sum(len(array.data) for array in arrays) > MAX_PACKET:
        return content
    data = recorddict_to_proto(content).SerializeToString(deterministic=True)
    return content if len(data) > MAX_PACKET else RecordDict({PACKET: ConfigRecord({CONTENT: data})})


def is_packed(content: RecordDict) -> bool:
    """Whether a content is a packet."""
    return PACKET in content


def unpack(content: RecordDict) -> RecordDict:
    """The records of a packet; a content that is not packed is returned as it is."""
    if not is_packed(content):
        return content
    packet = content[PACKET]
    data = (
        packet.get(CONTENT) if isinstance(packet, ConfigRecord) and len(content) == len(packet) == 1 else None
    )
    if not isinstance(data, bytes) or len(data) > MAX_PACKET:
        raise UnreadableError("The packet is malformed.")
    try:
        records = recorddict_from_proto(Proto.FromString(data))
    except Exception as error:  # Flower parses what the sender wrote, and raises whatever that leads to
        raise UnreadableError(f"The packet is malformed ({type(error).__name__}).") from None
    if not records.keys() <= RECORD_NAMES - {PACKET}:
        raise UnreadableError("The packet has records that do not belong to a message.")
    return records
