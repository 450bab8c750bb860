"""Kafka's default partitioner hash, as in org.apache.kafka.common.utils.Utils."""

_M, _MASK = 0x5BD1E995, 0xFFFFFFFF


def murmur2(key: bytes) -> int:
    """Return the 32-bit hash of a key, unsigned."""
    hashed = 0x9747B28C ^ len(key)
    whole = len(key) & ~3
    for start in range(0, whole, 4):
        word = int.from_bytes(key[start : start + 4], "little") * _M & _MASK
        word = (word ^ word >> 24) * _M & _MASK
        hashed = (hashed * _M & _MASK) ^ word
    if rest := key[whole:]:
        hashed = (hashed ^ int.from_bytes(rest, "little")) * _M & _MASK
    hashed = (hashed ^ hashed >> 13) * _M & _MASK
    return hashed ^ hashed >> 15
