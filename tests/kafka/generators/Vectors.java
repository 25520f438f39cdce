// Prints tests/data/kafka/vectors.json: what Kafka's own classes compute.
//   java -cp 'kafka-4.3.1/*' tests/kafka/generators/Vectors.java > tests/data/kafka/vectors.json     (a JDK, 17 or newer)
import java.io.ByteArrayOutputStream;
import java.io.DataOutputStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.List;
import java.util.Random;
import org.apache.kafka.clients.producer.internals.BuiltInPartitioner;
import org.apache.kafka.common.utils.ByteUtils;
import org.apache.kafka.common.utils.Crc32C;
import org.apache.kafka.common.utils.Utils;

public class Vectors {
    static final Random DRAW = new Random(1);
    static final HexFormat HEX = HexFormat.of();

    static byte[] bytes(int size) {
        byte[] data = new byte[size];
        DRAW.nextBytes(data);
        return data;
    }

    static String text(int size) {
        int[] points = new int[size];
        for (int i = 0; i < size; i++) {
            int kind = DRAW.nextInt(4);
            points[i] = kind < 2 ? 32 + DRAW.nextInt(95) : kind == 2 ? 0xa0 + DRAW.nextInt(0xd000) : 0x10000 + DRAW.nextInt(0xfffff);
        }
        return new String(points, 0, size);
    }

    public static void main(String[] args) throws Exception {
        List<String> keys = new ArrayList<>(), hashes = new ArrayList<>(), ints = new ArrayList<>(), longs = new ArrayList<>();
        for (int i = 0; i < 300; i++) {
            byte[] data = bytes(i % 40 + (i < 280 ? 0 : 1000));
            keys.add("[\"%s\",%d,%d,%d,%d]".formatted(HEX.formatHex(data), Utils.murmur2(data),
                BuiltInPartitioner.partitionForKey(data, 7), BuiltInPartitioner.partitionForKey(data, 1000),
                Crc32C.compute(data, 0, data.length)));
            String name = text(i % 30);
            hashes.add("[\"%s\",%d,%d]".formatted(HEX.formatHex(name.getBytes(StandardCharsets.UTF_8)), name.hashCode(),
                Utils.abs(name.hashCode()) % 50));
        }
        // The name whose hash is Integer.MIN_VALUE, where Math.abs and Kafka's own differ.
        String least = "polygenelubricants";
        hashes.add("[\"%s\",%d,%d]".formatted(HEX.formatHex(least.getBytes(StandardCharsets.UTF_8)), least.hashCode(),
            Utils.abs(least.hashCode()) % 50));
        for (int bit = 0; bit < 64; bit++) {
            for (long value : new long[] {1L << bit, (1L << bit) - 1, -(1L << bit), DRAW.nextLong() >> bit}) {
                ByteArrayOutputStream out = new ByteArrayOutputStream();
                ByteUtils.writeVarlong(value, new DataOutputStream(out));
                longs.add("[%d,\"%s\"]".formatted(value, HEX.formatHex(out.toByteArray())));
                if (value == (int) value) {
                    out.reset();
                    ByteUtils.writeVarint((int) value, new DataOutputStream(out));
                    String zigzag = HEX.formatHex(out.toByteArray());
                    out.reset();
                    ByteUtils.writeUnsignedVarint((int) value, new DataOutputStream(out));
                    ints.add("[%d,\"%s\",\"%s\"]".formatted(value, zigzag, HEX.formatHex(out.toByteArray())));
                }
            }
        }
        System.out.println("{\"how\":\"tests/kafka/generators/Vectors.java on the classes of Kafka 4.3.1\",");
        System.out.println("\"keys\":[" + String.join(",\n", keys) + "],");
        System.out.println("\"names\":[" + String.join(",\n", hashes) + "],");
        System.out.println("\"varints\":[" + String.join(",\n", ints) + "],");
        System.out.println("\"varlongs\":[" + String.join(",\n", longs) + "]}");
    }
}
