import java.lang.reflect.Field;
import java.lang.reflect.Method;
import java.util.TreeSet;
import org.apache.kafka.common.config.ConfigDef;

/** Prints each key that Kafka's configurations define: kind, name, whether Kafka documents it. */
public class ConfigKeys {
    private static final String[][] KINDS = {
        {"producer", "org.apache.kafka.clients.producer.ProducerConfig"},
        {"consumer", "org.apache.kafka.clients.consumer.ConsumerConfig"},
        {"admin", "org.apache.kafka.clients.admin.AdminClientConfig"},
        {"topic", "org.apache.kafka.storage.internals.log.LogConfig"},
        {"broker", "org.apache.kafka.server.config.AbstractKafkaConfig"},
    };

    private static ConfigDef of(String name) throws Exception {
        Class<?> type = Class.forName(name);
        for (String field : new String[] {"CONFIG", "CONFIG_DEF"}) {
            try {
                Field found = type.getDeclaredField(field);
                found.setAccessible(true);
                return (ConfigDef) found.get(null);
            } catch (NoSuchFieldException e) {
                continue;
            }
        }
        Method found = type.getDeclaredMethod("configDef");
        found.setAccessible(true);
        return (ConfigDef) found.invoke(null);
    }

    public static void main(String[] arguments) throws Exception {
        for (String[] kind : KINDS) {
            ConfigDef keys = of(kind[1]);
            for (String name : new TreeSet<>(keys.names())) {
                boolean internal = keys.configKeys().get(name).internalConfig;
                System.out.println(kind[0] + " " + name + (internal ? " internal" : " documented"));
            }
        }
    }
}
