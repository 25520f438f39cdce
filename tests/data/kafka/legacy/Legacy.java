import java.io.*; import java.nio.*; import java.nio.channels.*; import java.nio.charset.StandardCharsets; import java.nio.file.*;
import java.util.*;
import org.apache.kafka.common.compress.Compression;
import org.apache.kafka.common.record.*;
import org.apache.kafka.common.header.Header;

/** A segment of message formats 0, 1 and 2 one after another, and what Kafka's own classes read from it. */
public class Legacy {
  static long offset = 0;
  static final List<ByteBuffer> parts = new ArrayList<>();
  static void set(byte magic, CompressionType codec, TimestampType type, long[] offsets) {
    ByteBuffer b = ByteBuffer.allocate(4096);
    long base = offset;
    MemoryRecordsBuilder m = MemoryRecords.builder(b, magic, Compression.of(codec).build(), type, base, 1_600_000_000_000L + base,
        RecordBatch.NO_PRODUCER_ID, RecordBatch.NO_PRODUCER_EPOCH, RecordBatch.NO_SEQUENCE, false, 4);
    for (long o : offsets) {
      long ts = magic == 0 ? RecordBatch.NO_TIMESTAMP : 1_500_000_000_000L + 10 * (base + o) - 3 * (o % 2);
      byte[] key = o % 3 == 0 ? null : ("k" + (base + o)).getBytes(StandardCharsets.UTF_8);
      byte[] value = o % 4 == 3 ? null : ("value " + codec.name + " " + magic + " " + (base + o) + " xxxxxxxxxxxxxxxxxxxxxxxxxxxx").getBytes(StandardCharsets.UTF_8);
      m.appendWithOffset(base + o, ts, key, value);
    }
    MemoryRecords r = m.build();
    parts.add(r.buffer());
    offset = base + offsets[offsets.length - 1] + 1;
  }
  static String hex(ByteBuffer v) { if (v == null) return "null"; StringBuilder s = new StringBuilder("\""); for (int i = v.position(); i < v.limit(); i++) s.append(String.format("%02x", v.get(i))); return s.append("\"").toString(); }
  public static void main(String[] a) throws Exception {
    long[] dense = {0, 1, 2, 3}, sparse = {0, 2, 5};
    for (byte magic = 0; magic <= 1; magic++)
      for (CompressionType c : new CompressionType[]{CompressionType.NONE, CompressionType.GZIP, CompressionType.SNAPPY, CompressionType.LZ4}) {
        set(magic, c, magic == 0 ? TimestampType.NO_TIMESTAMP_TYPE : TimestampType.CREATE_TIME, dense);
        if (magic == 1) set(magic, c, TimestampType.LOG_APPEND_TIME, dense);
        set(magic, c, magic == 0 ? TimestampType.NO_TIMESTAMP_TYPE : TimestampType.CREATE_TIME, sparse);
      }
    for (CompressionType c : new CompressionType[]{CompressionType.NONE, CompressionType.LZ4, CompressionType.ZSTD}) set((byte) 2, c, TimestampType.CREATE_TIME, dense);
    File dir = new File(a[0] + "/legacy-0"); dir.mkdirs();
    File f = new File(dir, "00000000000000000000.log");
    try (FileOutputStream o = new FileOutputStream(f)) { for (ByteBuffer p : parts) { byte[] x = new byte[p.remaining()]; p.duplicate().get(x); o.write(x); } }
    StringBuilder s = new StringBuilder("{\"batches\": [");
    FileRecords records = FileRecords.open(f);
    String sep = "\n";
    int at = 0;
    for (FileLogInputStream.FileChannelRecordBatch b : records.batches()) {
      s.append(sep).append(String.format("{\"base_offset\": %d, \"last_offset\": %d, \"position\": %d, \"size\": %d, \"magic\": %d, \"crc\": %d, \"valid\": %b, \"compression\": \"%s\", \"timestamp_type\": \"%s\", \"max_timestamp\": %d, \"records\": [",
        b.baseOffset(), b.lastOffset(), at, b.sizeInBytes(), b.magic(), b.checksum(), b.isValid(), b.compressionType().name, b.timestampType().name, b.maxTimestamp()));
      at += b.sizeInBytes();
      String t = "";
      for (org.apache.kafka.common.record.Record r : b) { s.append(t).append(String.format("{\"offset\": %d, \"timestamp\": %d, \"key\": %s, \"value\": %s}", r.offset(), r.timestamp(), hex(r.key()), hex(r.value()))); t = ", "; }
      s.append("]}"); sep = ",\n";
    }
    s.append("\n]}\n");
    Files.write(Paths.get(a[0] + "/legacy-0.expected.json"), s.toString().getBytes(StandardCharsets.UTF_8));
  }
}
