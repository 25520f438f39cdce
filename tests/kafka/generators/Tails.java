// Prints tests/data/kafka/tails.json: what Kafka's own classes read of payloads with bytes behind them, and of
// compressed messages of formats 0 and 1 with a damaged one among them.
//   java -cp 'kafka-3.9.2/*' tests/kafka/generators/Tails.java > tests/data/kafka/tails.json     (a JDK, 17 or newer)
import java.io.ByteArrayOutputStream;
import java.io.DataOutputStream;
import java.io.OutputStream;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HexFormat;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.kafka.common.compress.Compression;
import org.apache.kafka.common.record.CompressionType;
import org.apache.kafka.common.record.LegacyRecord;
import org.apache.kafka.common.record.MemoryRecords;
import org.apache.kafka.common.record.Record;
import org.apache.kafka.common.record.RecordBatch;
import org.apache.kafka.common.record.SimpleRecord;
import org.apache.kafka.common.record.TimestampType;
import org.apache.kafka.common.utils.ByteBufferOutputStream;
import org.apache.kafka.common.utils.Crc32C;

public class Tails {
    static final HexFormat HEX = HexFormat.of();
    static final CompressionType[] CODECS = {CompressionType.GZIP, CompressionType.SNAPPY, CompressionType.LZ4, CompressionType.ZSTD};

    static byte[] taken(ByteBuffer buffer) {
        byte[] out = new byte[buffer.remaining()];
        buffer.duplicate().get(out);
        return out;
    }

    static byte[] packed(CompressionType codec, byte magic, byte[] plain) throws Exception {
        ByteBufferOutputStream out = new ByteBufferOutputStream(64);
        try (OutputStream to = Compression.of(codec).build().wrapForOutput(out, magic)) {
            to.write(plain);
        }
        out.buffer().flip();
        return taken(out.buffer());
    }

    static String batch(CompressionType codec, String name, byte[] tail) {
        MemoryRecords whole = MemoryRecords.withRecords(RecordBatch.MAGIC_VALUE_V2, 0L, Compression.of(codec).build(),
            new SimpleRecord(5, "k".getBytes(), "one value".getBytes()), new SimpleRecord(6, null, "another value".getBytes()));
        byte[] data = taken(whole.buffer());
        int size = data.length;
        data = Arrays.copyOf(data, size + tail.length);
        System.arraycopy(tail, 0, data, size, tail.length);
        ByteBuffer buffer = ByteBuffer.wrap(data);
        buffer.putInt(8, data.length - 12);
        buffer.putInt(17, (int) Crc32C.compute(data, 21, data.length - 21));
        String found;
        try {
            int count = 0;
            for (RecordBatch one : MemoryRecords.readableRecords(buffer).batches()) {
                one.ensureValid();
                for (Record ignored : one) count++;
            }
            found = "" + count;
        } catch (RuntimeException | Error error) {
            found = "null";
        }
        return "[\"%s\",\"%s\",\"%s\",%s]".formatted(codec.name, name, HEX.formatHex(data), found);
    }

    static String wrapper(byte magic, CompressionType codec, int damaged) throws Exception {
        SimpleRecord[] three = {new SimpleRecord(5, "k".getBytes(), "v1".getBytes()), new SimpleRecord(6, null, "v2".getBytes()),
            new SimpleRecord(7, null, "v3".getBytes())};
        MemoryRecords messages = MemoryRecords.withRecords(magic, 0L, Compression.of(CompressionType.NONE).build(), three);
        byte[] inner = taken(messages.buffer());
        int end = 0;
        for (int i = 0; i <= damaged; i++) end += 12 + ByteBuffer.wrap(inner).getInt(end + 8);
        if (damaged >= 0) inner[end - 1] ^= 1; // the value's last byte
        byte[] value = packed(codec, magic, inner);
        ByteArrayOutputStream bytes = new ByteArrayOutputStream();
        DataOutputStream out = new DataOutputStream(bytes);
        out.writeLong(2);
        out.writeInt((magic == 0 ? 14 : 22) + value.length);
        LegacyRecord.write(out, magic, magic == 0 ? -1 : 7, null, ByteBuffer.wrap(value), codec, TimestampType.CREATE_TIME);
        List<String> found = new ArrayList<>();
        for (RecordBatch one : MemoryRecords.readableRecords(ByteBuffer.wrap(bytes.toByteArray())).batches()) {
            one.ensureValid();
            for (Record record : one) {
                boolean valid = true;
                try {
                    record.ensureValid();
                } catch (RuntimeException error) {
                    valid = false;
                }
                found.add("[%d,%b]".formatted(record.offset(), valid));
            }
        }
        return "[%d,\"%s\",\"%s\",[%s]]".formatted(magic, codec.name, HEX.formatHex(bytes.toByteArray()), String.join(",", found));
    }

    public static void main(String[] args) throws Exception {
        List<String> batches = new ArrayList<>(), wrappers = new ArrayList<>();
        for (CompressionType codec : CODECS) {
            Map<String, byte[]> tails = new LinkedHashMap<>();
            tails.put("nothing", new byte[0]);
            for (int size : new int[] {1, 3, 4, 20}) tails.put(size + " zeros", new byte[size]);
            for (int size : new int[] {1, 3, 30}) {
                byte[] text = new byte[size];
                Arrays.fill(text, (byte) 'x');
                tails.put(size + " letters", text);
            }
            for (String plain : new String[] {"", "again"}) {
                byte[] more = packed(codec, (byte) 2, plain.getBytes());
                for (int size = 1; size <= more.length; size++) {
                    tails.put("%d of %d bytes of '%s'".formatted(size, more.length, plain), Arrays.copyOf(more, size));
                }
            }
            for (Map.Entry<String, byte[]> tail : tails.entrySet()) batches.add(batch(codec, tail.getKey(), tail.getValue()));
        }
        for (byte magic = 0; magic <= 1; magic++) {
            for (CompressionType codec : new CompressionType[] {CompressionType.GZIP, CompressionType.SNAPPY, CompressionType.LZ4}) {
                for (int damaged = -1; damaged < 3; damaged++) wrappers.add(wrapper(magic, codec, damaged));
            }
        }
        System.out.println("{\"how\":\"tests/kafka/generators/Tails.java on the classes of Kafka 3.9.2\",");
        System.out.println("\"batches\":[" + String.join(",\n", batches) + "],");
        System.out.println("\"wrappers\":[" + String.join(",\n", wrappers) + "]}");
    }
}
