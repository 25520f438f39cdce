# Byte offsets of the record batch v2 header and the sizes of index entries (Kafka's formats).
cdef enum:
    BASE_OFFSET_AT = 0
    BATCH_LENGTH_AT = 8
    LEADER_EPOCH_AT = 12
    MAGIC_AT = 16
    CRC_AT = 17
    ATTRIBUTES_AT = 21          # the CRC covers everything from here on
    LAST_OFFSET_DELTA_AT = 23
    BASE_TIMESTAMP_AT = 27
    MAX_TIMESTAMP_AT = 35
    PRODUCER_ID_AT = 43
    PRODUCER_EPOCH_AT = 51
    BASE_SEQUENCE_AT = 53
    RECORDS_COUNT_AT = 57
    HEADER_SIZE = 61
    LOG_OVERHEAD = 12           # base offset and length: not counted by the length field
    MARKER_BATCH_SIZE = 78

    CODEC_MASK = 0x07
    LOG_APPEND_TIME_BIT = 0x08
    TRANSACTIONAL_BIT = 0x10
    CONTROL_BIT = 0x20
    DELETE_HORIZON_BIT = 0x40

    CONTROL_ABORT = 0
    CONTROL_COMMIT = 1

    OFFSET_ENTRY_SIZE = 8
    TIME_ENTRY_SIZE = 12
    ABORTED_ENTRY_SIZE = 34
    SNAPSHOT_ENTRY_SIZE = 46

    MAX_SEQUENCE = 2147483647
